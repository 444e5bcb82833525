# The rendezvous over gRPC: a shared library beside `muster`, loaded only by agents of jobs with several nodes, since
# loading gRPC takes longer than a whole job on one node takes to start. It uses headers of our layers but none of
# their libraries, which are not position-independent. Sources from rendezvous.proto go to the build folder.

find_package(Protobuf REQUIRED)
pkg_check_modules(GRPCPP REQUIRED IMPORTED_TARGET grpc++)
find_program(MUSTER_GRPC_PLUGIN grpc_cpp_plugin REQUIRED)

set(_grpc_folder ${CMAKE_SOURCE_DIR}/launcher/rendezvous/grpc)
set(_grpc_generated ${CMAKE_BINARY_DIR}/generated/rendezvous)
file(MAKE_DIRECTORY ${_grpc_generated})
add_custom_command(
  OUTPUT ${_grpc_generated}/rendezvous.pb.cc ${_grpc_generated}/rendezvous.pb.h
    ${_grpc_generated}/rendezvous.grpc.pb.cc ${_grpc_generated}/rendezvous.grpc.pb.h
  COMMAND protobuf::protoc --proto_path=${_grpc_folder} --cpp_out=${_grpc_generated}
    --grpc_out=${_grpc_generated} --plugin=protoc-gen-grpc=${MUSTER_GRPC_PLUGIN} ${_grpc_folder}/rendezvous.proto
  DEPENDS ${_grpc_folder}/rendezvous.proto
  VERBATIM)

file(GLOB _grpc_sources CONFIGURE_DEPENDS ${_grpc_folder}/*.cpp)
add_library(muster-rendezvous MODULE ${_grpc_sources} ${_grpc_generated}/rendezvous.pb.cc
  ${_grpc_generated}/rendezvous.grpc.pb.cc)
set_target_properties(muster-rendezvous PROPERTIES PREFIX "" CXX_VISIBILITY_PRESET hidden
  LIBRARY_OUTPUT_DIRECTORY ${CMAKE_RUNTIME_OUTPUT_DIRECTORY})
target_include_directories(muster-rendezvous PRIVATE ${CMAKE_SOURCE_DIR})
target_include_directories(muster-rendezvous SYSTEM PRIVATE ${_grpc_generated})
target_link_libraries(muster-rendezvous PRIVATE PkgConfig::GRPCPP protobuf::libprotobuf-lite fmt::fmt Threads::Threads
  muster_warnings)
if(MUSTER_SANITIZE MATCHES "thread")
  # gRPC itself is not instrumented, so half of its synchronisation would be invisible and reported as races.
  target_compile_options(muster-rendezvous PRIVATE -fno-sanitize=thread)
endif()
if(MUSTER_SANITIZE MATCHES "undefined")
  # The check compares type information by address, and the library has its own copy of that of Link.
  target_compile_options(muster_launcher_rendezvous PUBLIC -fno-sanitize=vptr)
endif()
