// Whole jobs over gloo: the numbers of shm, and strangers at every port of the job.
#include <arpa/inet.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <random>
#include <regex>
#include <set>
#include <sstream>
#include <thread>

#include "dist/backends/backends.h"
#include "tests/train/job.h"

namespace muster {
namespace {
class GlooJob : public EndToEnd {
 protected:
  void SetUp() override {
    const std::string why{why_left_out("gloo")};
    if (!why.empty()) GTEST_SKIP() << why;
    std::ifstream in(recipe());
    std::string text((std::istreambuf_iterator<char>(in)), {});
    text = std::regex_replace(text, std::regex("backend: shm"), "backend: gloo");
    std::ofstream(recipe()) << text;
  }

  std::vector<std::string> losses(const std::string& run_dir) {
    std::vector<std::string> all;
    for (const json& line : lines(run_dir + "/metrics.jsonl"))
      all.push_back(fmt::format("{} {}", line.at("step").dump(), line.at("loss").dump()));
    return all;
  }
};

TEST_F(GlooJob, ComputesWhatShmComputesToTheLastBit) {
  const Ended over_gloo = run("--nproc-per-node 3", "run.dir=" + dir("gloo"));
  ASSERT_EQ(over_gloo.status, 0) << over_gloo.output;
  const Ended over_shm = run("--nproc-per-node 3", "dist.backend=shm run.dir=" + dir("shm"));
  ASSERT_EQ(over_shm.status, 0) << over_shm.output;
  EXPECT_EQ(losses(dir("gloo")), losses(dir("shm")));
  EXPECT_EQ(losses(dir("gloo")).size(), 20U);
}

// Ports that processes of this job listen on: their sockets, looked up in /proc/net/tcp.
std::set<int> listening_ports(const std::string& run_dir) {
  std::set<std::string> inodes;
  for (const std::filesystem::directory_entry& process :
       std::filesystem::directory_iterator("/proc")) {
    std::error_code ignored;
    std::ifstream command(process.path() / "cmdline");
    const std::string text((std::istreambuf_iterator<char>(command)), {});
    if (text.find(run_dir) == std::string::npos) continue;
    for (const auto& fd : std::filesystem::directory_iterator(process.path() / "fd", ignored)) {
      const std::string target = std::filesystem::read_symlink(fd.path(), ignored).string();
      if (target.starts_with("socket:[")) inodes.insert(target.substr(8, target.size() - 9));
    }
  }
  std::set<int> ports;
  std::ifstream table("/proc/net/tcp");
  std::string line;
  std::getline(table, line);
  while (std::getline(table, line)) {
    std::istringstream fields(line);
    std::string number, local, remote, state, queues, timer, retransmits, user, timeout, inode;
    fields >> number >> local >> remote >> state >> queues >> timer >> retransmits >> user >>
        timeout >> inode;
    if (state == "0A" && inodes.contains(inode))
      ports.insert(std::stoi(local.substr(local.find(':') + 1), nullptr, 16));
  }
  return ports;
}

// What a port scanner and a lost browser do. The connections stay open until the end.
void offend(int port, std::vector<int>& open) {
  std::mt19937 random(static_cast<uint32_t>(port));
  std::string noise(512, '\0');
  for (char& c : noise) c = static_cast<char>(random());
  const std::string offences[] = {noise, "GET / HTTP/1.1\r\nHost: here\r\n\r\n",
                                  std::string("muster gloo 001\n\0\0", 18), ""};
  for (const std::string& bytes : offences) {
    const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (::connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0 ||
        errno == EINPROGRESS) {
      static_cast<void>(::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL));
    }
    open.push_back(fd);
  }
}

TEST_F(GlooJob, StrangersAtEveryPortChangeNothing) {
  const Ended quiet = run("--nproc-per-node 2", "run.dir=" + dir("quiet"));
  ASSERT_EQ(quiet.status, 0) << quiet.output;
  std::atomic<bool> is_over{false};
  Ended ended;
  std::thread job([&] {
    ended = run("--nproc-per-node 2", "run.dir=" + dir("visited"));
    is_over = true;
  });
  std::set<int> visited;
  std::vector<int> open;
  while (!is_over) {
    for (const int port : listening_ports(dir("visited"))) {
      visited.insert(port);
      if (open.size() < 4000) offend(port, open);
    }
  }
  job.join();
  for (const int fd : open) ::close(fd);
  EXPECT_EQ(ended.status, 0) << ended.output;
  EXPECT_GE(visited.size(), 1U) << "the store's port at least";
  EXPECT_EQ(losses(dir("visited")), losses(dir("quiet")));
}
}  // namespace
}  // namespace muster
