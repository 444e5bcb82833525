#include "train/tensorboard.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <bit>
#include <cerrno>
#include <chrono>

#include "core/base/file_system.h"

namespace muster {
namespace {
constexpr std::array<uint32_t, 256> make_crc_table() {
  std::array<uint32_t, 256> table{};
  for (uint32_t byte = 0; byte < table.size(); ++byte) {
    uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0x82f63b78U : 0U);
    table[byte] = crc;
  }
  return table;
}
constexpr std::array<uint32_t, 256> kCrcTable = make_crc_table();

// A checksum over bytes that hold checksums is weak, so TFRecord stores it rotated and shifted.
uint32_t masked_crc(std::string_view bytes) {
  const std::span<const char> chars(bytes.data(), bytes.size());
  return std::rotr(crc32c(std::as_bytes(chars)), 15) + 0xa282ead8U;
}

template <typename Unsigned>
void put_fixed(std::string& out, Unsigned value) {
  for (size_t byte = 0; byte < sizeof(value); ++byte) {
    out += static_cast<char>(static_cast<unsigned char>(value >> (8 * byte)));
  }
}

void put_varint(std::string& out, uint64_t value) {
  for (; value >= 0x80; value >>= 7) {
    out += static_cast<char>(static_cast<unsigned char>(value | 0x80));
  }
  out += static_cast<char>(static_cast<unsigned char>(value));
}

// Fields of protobuf messages: the number and the wire type, then the value.
enum class Wire : uint8_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

void put_key(std::string& out, uint32_t field, Wire wire) {
  put_varint(out, (field << 3) | static_cast<uint32_t>(wire));
}
void put_int(std::string& out, uint32_t field, int64_t value) {
  put_key(out, field, Wire::kVarint);
  put_varint(out, static_cast<uint64_t>(value));
}
void put_double(std::string& out, uint32_t field, double value) {
  put_key(out, field, Wire::kFixed64);
  put_fixed(out, std::bit_cast<uint64_t>(value));
}
void put_float(std::string& out, uint32_t field, float value) {
  put_key(out, field, Wire::kFixed32);
  put_fixed(out, std::bit_cast<uint32_t>(value));
}
void put_bytes(std::string& out, uint32_t field, std::string_view value) {
  put_key(out, field, Wire::kBytes);
  put_varint(out, value.size());
  out += value;
}

// Field numbers of the messages that are used.
namespace event {
constexpr uint32_t kWallTime = 1, kStep = 2, kFileVersion = 3, kSummary = 5, kSessionLog = 7;
}  // namespace event
namespace summary {
constexpr uint32_t kValue = 1, kTag = 1, kSimpleValue = 2;
}  // namespace summary
namespace session_log {
constexpr uint32_t kStatus = 1;
constexpr int64_t kStart = 1;
}  // namespace session_log

double wall_seconds() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration<double>(now).count();
}

// TensorBoard takes every file with "tfevents" in its name and reads them in the order of names.
std::string file_name(double seconds, int number) {
  std::array<char, 256> host{};
  if (::gethostname(host.data(), host.size() - 1) != 0) host[0] = '\0';
  // Microseconds too: a restart may follow within the same second.
  const auto whole = static_cast<int64_t>(seconds);
  const auto micros = static_cast<int64_t>((seconds - static_cast<double>(whole)) * 1e6);
  return fmt::format("events.out.tfevents.{:010}.{:06}.{}.{}.{}", whole, micros, host.data(),
                     ::getpid(), number);
}
}  // namespace

uint32_t crc32c(std::span<const std::byte> bytes) noexcept {
  uint32_t crc = 0xffffffffU;
  for (const std::byte byte : bytes) {
    crc = (crc >> 8) ^ kCrcTable[(crc ^ std::to_integer<uint32_t>(byte)) & 0xffU];
  }
  return ~crc;
}

std::string tf_record(std::string_view bytes) {
  std::string record;
  record.reserve(bytes.size() + 16);
  put_fixed(record, static_cast<uint64_t>(bytes.size()));
  put_fixed(record, masked_crc(record));
  record += bytes;
  put_fixed(record, masked_crc(bytes));
  return record;
}

Result<std::unique_ptr<TensorBoardWriter>> TensorBoardWriter::open(const std::string& directory,
                                                                   int64_t next_step) {
  MUSTER_TRY(real_file_system().make_directories(directory));
  std::string path;
  int fd = -1;
  for (int number = 0; fd < 0; ++number) {
    path = path_join(directory, file_name(wall_seconds(), number));
    fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0644);
    if (fd < 0 && errno != EEXIST) {
      return make_error(ErrorCode::kIo, "event file {}: {}", path, errno_text(errno));
    }
  }
  std::unique_ptr<TensorBoardWriter> writer(new TensorBoardWriter(fd, std::move(path)));
  std::string version;
  put_bytes(version, event::kFileVersion, "brain.Event:2");
  MUSTER_TRY(writer->write_event(version, 0));
  std::string status;
  put_int(status, session_log::kStatus, session_log::kStart);
  std::string start;
  put_bytes(start, event::kSessionLog, status);
  MUSTER_TRY(writer->write_event(start, next_step));
  return writer;
}

TensorBoardWriter::~TensorBoardWriter() { ::close(fd_); }

Result<void> TensorBoardWriter::scalar(std::string_view tag, int64_t step, double value) {
  const TensorBoardScalar one = {tag, value};
  return scalars(step, std::span(&one, 1));
}

Result<void> TensorBoardWriter::scalars(int64_t step, std::span<const TensorBoardScalar> values) {
  std::string all;
  for (const TensorBoardScalar& scalar : values) {
    std::string value;
    put_bytes(value, summary::kTag, scalar.tag);
    put_float(value, summary::kSimpleValue, static_cast<float>(scalar.value));
    put_bytes(all, summary::kValue, value);
  }
  std::string fields;
  put_bytes(fields, event::kSummary, all);
  return write_event(fields, step);
}

Result<void> TensorBoardWriter::write_event(std::string_view fields, int64_t step) {
  std::string message;
  put_double(message, event::kWallTime, wall_seconds());
  if (step != 0) put_int(message, event::kStep, step);
  message += fields;
  const std::string record = tf_record(message);
  const ssize_t written = ::write(fd_, record.data(), record.size());
  if (written == static_cast<ssize_t>(record.size())) return {};
  return make_error(ErrorCode::kIo, "event file {}: {} bytes must be written; got {}{}", path_,
                    record.size(), written, written < 0 ? ": " + errno_text(errno) : "");
}
}  // namespace muster
