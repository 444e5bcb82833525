// `muster report` through the binary: the page's data, hostile texts, and the page in a browser.
#include <gmock/gmock.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "core/base/file_system.h"
#include "core/base/text.h"
#include "tests/launcher/agent/run_muster.h"
#include "tests/support/matchers.h"

namespace muster {
namespace {
using ::testing::HasSubstr;
using ::testing::Not;
using Json = nlohmann::ordered_json;

constexpr std::string_view kHostile =
    "</script><script>document.title='owned'</script><img src=x onerror=alert(1)>&lt;<!-- \x1b[31m";
constexpr std::string_view kMarker = "onerror=alert(1)";

size_t count(std::string_view text, std::string_view part) {
  size_t found = 0;
  for (size_t at = text.find(part); at != std::string_view::npos; at = text.find(part, at + 1)) {
    ++found;
  }
  return found;
}

// A run of 12 steps in two attempts; a worker was killed while it wrote a line.
class ReportCommand : public ::testing::Test {
 protected:
  ReportCommand() {
    write("recipe.resolved.yaml",
          "recipe: 1\nrun: {name: \"a <b>bold</b> run\", dir: out}\nmodel: {layers: 2}\n"
          "data: {files: [corpus.txt]}\nmesh: {fsdp: -1}\ntrain: {steps: 12}\n");
    std::string metrics;
    const std::vector<std::pair<int, int>> steps = {{1, 0}, {2, 0}, {3, 0},  {4, 0},  {5, 0},
                                                    {3, 1}, {4, 1}, {5, 1},  {6, 1},  {7, 1},
                                                    {8, 1}, {9, 1}, {10, 1}, {11, 1}, {12, 1}};
    for (size_t row = 0; row < steps.size(); ++row) {
      const auto [step, attempt] = steps[row];
      const double loss = 4.0 / (1 + step) + 0.1;
      metrics += fmt::format(
          "{{\"step\":{},\"loss\":{},\"loss_hex\":\"{}\",\"grad_norm\":{},\"lr\":{},\"tokens\":"
          "2048,"
          "\"tokens_per_s\":{},\"rss_mb\":{},\"attempt\":{},\"generation\":{},\"t_ns\":{}}}\n",
          step, loss, hex_float(loss), 1.0 / 3 * step, 1e-5 * step, 1000.1 + attempt, 88.1875,
          attempt, attempt + 3, 7'000'000'000 + 123'456'789 * row);
      if (row == 4) metrics += "{\"step\":6,\"loss\":1.\n";
    }
    write("metrics.jsonl", metrics);
    write("events.jsonl",
          "{\"event\":\"group_ready\",\"attempt\":0,\"t_ns\":6900000000}\n"
          "{\"event\":\"saved\",\"step\":2,\"attempt\":0,\"digest\":\"00ff\"}\n"
          "{\"event\":\"group_ready\",\"attempt\":1,\"t_ns\":7500000000}\n" +
              Json{{"event", "checkpoint_skipped"},
                   {"name", "step-00000004"},
                   {"attempt", 1},
                   {"reason", kHostile}}
                  .dump() +
              "\n{\"event\":\"resumed\",\"from_step\":2,\"attempt\":1}\n"
              "{\"event\":\"finished\",\"step\":12,\"attempt\":1}\n");
    const Json cause = {{"global_rank", 1},     {"pid", 77},
                        {"role", "cause"},      {"signal", "SIGKILL"},
                        {"class", kHostile},    {"stderr", {kHostile, "plain line"}},
                        {"ms_after_cause", 0.0}};
    write("incident-0.json", Json{{"format", 1},
                                  {"attempt", 0},
                                  {"generation", 3},
                                  {"world_size", 4},
                                  {"cause", cause},
                                  {"decision", {{"reason", kHostile}}},
                                  {"ranks", Json::array()}}
                                 .dump());
    write("incident-1.json", "{\"attempt\": 1, </script>");
    write("logs/attempt_1/0/stderr.log", std::string(kHostile) + "\nlast line\n");
  }

  void write(const std::string& name, const std::string& text) {
    const std::filesystem::path path = directory_.file("run/" + name);
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << text;
  }
  [[nodiscard]] std::string run_dir() const { return directory_.file("run"); }
  [[nodiscard]] std::string html() const { return directory_.file("run.html"); }

  std::string make_page() {
    const testing::Outcome outcome = testing::run_muster({"report", run_dir(), "-o", html()});
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    EXPECT_THAT(outcome.out, HasSubstr("15 steps, 2 incidents, 2 damaged lines passed over"));
    Result<std::string> text = read_text(real_file_system(), html());
    EXPECT_OK(text);
    return text.value_or("");
  }

  // The lines of metrics.jsonl that are whole.
  std::vector<Json> whole_lines() {
    std::vector<Json> lines;
    std::ifstream file(run_dir() + "/metrics.jsonl");
    for (std::string line; std::getline(file, line);) {
      Json json = Json::parse(line, nullptr, false);
      if (!json.is_discarded()) lines.push_back(std::move(json));
    }
    return lines;
  }

  TempDirectory directory_;
};

Json embedded_data(const std::string& page) {
  static constexpr std::string_view kOpen = "<script type=\"application/json\" id=\"data\">";
  const size_t from = page.find(kOpen);
  const size_t to = page.find("</script>", from);
  if (from == std::string::npos || to == std::string::npos) return nullptr;
  return Json::parse(page.substr(from + kOpen.size(), to - from - kOpen.size()), nullptr, false);
}

TEST_F(ReportCommand, EmbedsTheNumbersOfMetricsJsonl) {
  const Json data = embedded_data(make_page());
  ASSERT_TRUE(data.is_object());
  const std::vector<Json> lines = whole_lines();
  ASSERT_EQ(lines.size(), 15U);
  for (const auto& [key, value] : lines[0].items()) {
    const Json& metrics = data["metrics"];
    const Json& column = metrics.contains(key) ? metrics[key] : metrics["columns"][key];
    ASSERT_EQ(column.size(), lines.size()) << key;
    for (size_t row = 0; row < lines.size(); ++row) EXPECT_EQ(column[row], lines[row][key]) << key;
  }
  EXPECT_EQ(data["attempts"].size(), 2U);
  EXPECT_EQ(data["attempts"][1]["generation"], 4);
  EXPECT_EQ(data["attempts"][1]["resumed_from"], 2);
  EXPECT_EQ(data["attempts"][0]["ended"], kHostile);
  EXPECT_EQ(data["layout"]["world_size"], 4);  // the incident knows; logs hold one rank only
  EXPECT_EQ(data["layout"]["axes"][2]["size"], 4);
  EXPECT_EQ(data["planned_steps"], 12);
  EXPECT_EQ(data["finished"], true);
  EXPECT_EQ(data["damaged"].size(), 2U);
  EXPECT_EQ(data["pipeline"], nullptr);
}

TEST_F(ReportCommand, LetsNoTextOfTheRunBecomeMarkup) {
  const std::string page = make_page();
  EXPECT_EQ(count(page, "</script>"), 2U);  // the data's and the page's own
  EXPECT_EQ(count(page, "<script"), 2U);
  EXPECT_EQ(count(page, "<img"), 0U);
  EXPECT_EQ(count(page, "<b>"), 0U);
  EXPECT_EQ(count(page, "<!--"), 0U);
  EXPECT_THAT(page, HasSubstr(kMarker));  // it is there, as text
  // Nothing is loaded: no address but the names of XML name spaces.
  EXPECT_EQ(count(page, "http"),
            count(page, "http-equiv") + count(page, "http://www.w3.org/2000/svg"));
  EXPECT_THAT(page, HasSubstr("default-src 'none'"));
}

TEST_F(ReportCommand, IsTheSameForTheSameFolder) { EXPECT_EQ(make_page(), make_page()); }

TEST_F(ReportCommand, WritesDataOnlyAndBesideTheRunByDefault) {
  const testing::Outcome json = testing::run_muster({"report", run_dir(), "--json", "-o", "-"});
  EXPECT_EQ(Json::parse(json.out)["format"], 1);
  EXPECT_EQ(testing::run_muster({"report", run_dir()}).status, 0);
  EXPECT_TRUE(std::filesystem::exists(run_dir() + "/report.html"));
  const testing::Outcome none = testing::run_muster({"report", directory_.path()});
  EXPECT_EQ(none.status, 66);
  EXPECT_THAT(none.err, HasSubstr("must hold metrics.jsonl"));
}

TEST_F(ReportCommand, ShowsAnEmptyRun) {
  write("metrics.jsonl", "");
  write("events.jsonl", "{\"event\":\"group_re");
  for (const char* name : {"incident-0.json", "incident-1.json"}) {
    std::filesystem::remove(run_dir() + "/" + name);
  }
  const testing::Outcome outcome = testing::run_muster({"report", run_dir(), "-o", "-"});
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_EQ(embedded_data(outcome.out)["metrics"]["step"].size(), 0U);
}

// ---- In a browser -------------------------------------------------------------------------------

std::string browser() {
  for (const char* path : {"/usr/bin/chromium", "/usr/bin/chromium-browser"}) {
    if (::access(path, X_OK) == 0) return path;
  }
  return "";
}

class ReportInBrowser : public ReportCommand {
 protected:
  void SetUp() override {
    if (browser().empty()) GTEST_SKIP() << "chromium is not installed";
    make_page();
  }
  // Opens the page; what the browser prints on stdout, its log goes to `log`.
  std::string open(const std::string& options, const std::string& fragment, std::string& log) {
    const std::string command = fmt::format(
        "timeout -k 5 90 {} --headless --no-sandbox --disable-gpu --disable-dev-shm-usage "
        "--user-data-dir={} --enable-logging=stderr --virtual-time-budget=2000 {} 'file://{}{}' "
        "2> {} < /dev/null",
        browser(), directory_.file("profile"), options, html(), fragment, directory_.file("log"));
    std::string out;
    FILE* pipe = ::popen(command.c_str(), "r");
    char buffer[4096];
    while (const size_t n = std::fread(buffer, 1, sizeof(buffer), pipe)) out.append(buffer, n);
    const int raw = ::pclose(pipe);
    EXPECT_TRUE(WIFEXITED(raw) && WEXITSTATUS(raw) == 0) << command;
    log = read_text(real_file_system(), directory_.file("log")).value_or("");
    return out;
  }
};

// The cells of the table behind `mark`, row by row.
std::vector<std::vector<std::string>> table_cells(const std::string& dom, const std::string& mark) {
  std::vector<std::vector<std::string>> rows;
  const size_t from = dom.find("<tbody>", dom.find(mark));
  const std::string body = dom.substr(from, dom.find("</tbody>", from) - from);
  for (size_t at = body.find("<tr>"); at != std::string::npos; at = body.find("<tr>", at + 1)) {
    const std::string row = body.substr(at, body.find("</tr>", at) - at);
    rows.emplace_back();
    for (size_t cell = row.find("<td"); cell != std::string::npos;
         cell = row.find("<td", cell + 1)) {
      const size_t text = row.find('>', cell) + 1;
      rows.back().push_back(row.substr(text, row.find("</td>", text) - text));
    }
  }
  return rows;
}

TEST_F(ReportInBrowser, ShowsTheNumbersOfMetricsJsonlWithoutAnError) {
  std::string log;
  const std::string dom = open("--dump-dom", "#steps", log);
  EXPECT_THAT(log, Not(HasSubstr("CONSOLE")));
  ASSERT_THAT(dom, HasSubstr("data-ready=\"yes\""));
  EXPECT_THAT(dom, Not(HasSubstr("<title>owned")));
  EXPECT_EQ(count(dom, "<img"), 0U);
  // Five charts of two attempts; the replaced stretch of the first is a curve of its own, and one
  // more in the legend.
  EXPECT_EQ(count(dom, "<path class=\"curve\""), 10U);
  EXPECT_EQ(count(dom, "<path class=\"curve old\""), 6U);
  const std::vector<std::vector<std::string>> rows = table_cells(dom, "id=\"steps\"");
  const std::vector<Json> lines = whole_lines();
  ASSERT_EQ(rows.size(), lines.size());
  // Columns: step, attempt, then the others by name.
  const std::vector<std::string> names = {"step", "attempt", "grad_norm", "loss",
                                          "lr",   "rss_mb",  "tokens",    "tokens_per_s"};
  for (size_t row = 0; row < lines.size(); ++row) {
    ASSERT_EQ(rows[row].size(), names.size());
    for (size_t at = 0; at < names.size(); ++at) {
      EXPECT_EQ(std::stod(rows[row][at]), lines[row][names[at]].get<double>()) << names[at];
    }
  }
}

// The page's policy lets no other script in, so this one works on a copy without it.
TEST_F(ReportInBrowser, ReadsTheValueUnderThePointerAndMovesByKeys) {
  std::string page = read_text(real_file_system(), html()).value_or("");
  const size_t policy = page.find("<meta http-equiv");
  page.erase(policy, page.find('>', policy) + 1 - policy);
  page.insert(page.find("</body>"), R"(<script>
    const svg = document.querySelector('#chart-0 svg'), bounds = svg.getBoundingClientRect();
    const shown = () => document.querySelector('#chart-0 output b').dataset.value;
    // Steps 1 to 12 lie between 50 and width - 10: step 5 is at 4/11 of that.
    const x = bounds.left + 50 + (bounds.width - 60) * 4 / 11;
    svg.dispatchEvent(new PointerEvent('pointermove', {clientX: x, clientY: bounds.top + 40}));
    document.body.dataset.pointed = shown();
    svg.dispatchEvent(new KeyboardEvent('keydown', {key: 'ArrowRight'}));
    document.body.dataset.moved = shown();
  </script>)");
  std::ofstream(html()) << page;
  std::string log;
  const std::string dom = open("--dump-dom", "", log);
  EXPECT_THAT(log, Not(HasSubstr("CONSOLE")));
  const std::vector<Json> lines = whole_lines();  // rows 7, 8: steps 5, 6 of the second attempt
  EXPECT_THAT(dom, HasSubstr("data-pointed=\"" + lines[7]["loss"].dump() + "\""));
  EXPECT_THAT(dom, HasSubstr("data-moved=\"" + lines[8]["loss"].dump() + "\""));
}

TEST_F(ReportInBrowser, DrawsAPictureOnAPhoneAndOnADesk) {
  for (const std::string size : {"390,2600", "1200,1600"}) {
    const std::string picture = directory_.file("page.png");
    std::string log;
    open(fmt::format("--window-size={} --screenshot={}", size, picture), "#time", log);
    EXPECT_THAT(log, Not(HasSubstr("CONSOLE")));
    ASSERT_TRUE(std::filesystem::exists(picture));
    EXPECT_GT(std::filesystem::file_size(picture), 60000U);  // an empty page has less than 20 KB
    std::filesystem::remove(picture);
  }
}
}  // namespace
}  // namespace muster
