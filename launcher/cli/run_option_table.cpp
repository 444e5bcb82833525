// The table of all options, and the help that follows from it.
#include <array>

#include "core/base/text.h"
#include "launcher/cli/run_options.h"

namespace muster {
namespace {
using Kind = RunOption::Kind;
using Support = RunOption::Support;

constexpr auto kFlag = Kind::kFlag;

constexpr std::array kOptions = {
    RunOption{.name = "help",
              .letter = 'h',
              .kind = kFlag,
              .value_name = "",
              .help = "Print this text.",
              .note = "",
              .has_variable = false},
    // Where and how many.
    RunOption{
        .name = "nnodes",
        .value_name = "N or MIN:MAX",
        .help = "Nodes of the job. With MIN:MAX it goes on while MIN are left and takes more in up "
                "to MAX. Default 1.",
        .note = ""},
    RunOption{.name = "nproc-per-node",
              .value_name = "N",
              .help = "Workers of each node: a number, auto (devices, else cores), gpu or cpu. "
                      "Default 1; for a recipe the product of its mesh, where an axis of -1 "
                      "counts 1, over the nodes.",
              .note = ""},
    RunOption{.name = "max-restarts",
              .value_name = "N",
              .help = "How often the workers may be restarted after a failure. Default 0.",
              .note = ""},
    RunOption{.name = "standalone",
              .kind = kFlag,
              .value_name = "",
              .help = "One node, no rendezvous: the same as --nnodes 1.",
              .note = ""},
    RunOption{.name = "node-rank",
              .value_name = "N",
              .help = "Rank of this node. Needed by --rdzv-backend static; without it the host is "
                      "0 and the others take what is free.",
              .note = ""},
    RunOption{
        .name = "master-addr",
        .value_name = "HOST",
        .help = "Address on which the job's store listens, and MASTER_ADDR. Default 127.0.0.1.",
        .note = ""},
    RunOption{.name = "master-port",
              .value_name = "PORT",
              .help = "Its port, and MASTER_PORT. Default: a free one, another in each attempt.",
              .note = ""},
    RunOption{.name = "local-addr",
              .value_name = "HOST",
              .help = "Address of this node; MASTER_ADDR when this node hosts the store.",
              .note = ""},
    RunOption{.name = "role",
              .value_name = "NAME",
              .help = "ROLE_NAME, and part of the prefix of lines. Default \"default\".",
              .note = ""},
    RunOption{.name = "rdzv-backend",
              .value_name = "NAME",
              .help = "How several nodes meet. c10d: at --rdzv-endpoint, in muster's own protocol; "
                      "the default when an endpoint is given. static: at --master-addr, node rank "
                      "0 hosts, agents talk on the port after --master-port.",
              .note = ""},
    RunOption{.name = "rdzv-endpoint",
              .value_name = "HOST[:PORT]",
              .help = "Where they meet; the agent that can listen there hosts. Default port 29400. "
                      "All nodes need the same MUSTER_JOB_TOKEN (or MUSTER_JOB_TOKEN_FILE) unless "
                      "HOST is this machine.",
              .note = ""},
    RunOption{.name = "rdzv-id",
              .value_name = "ID",
              .help = "The run id, the same on all nodes. Default: a fresh UUID of the host.",
              .note = ""},
    RunOption{.name = "rdzv-conf",
              .value_name = "K=V,...",
              .help = "join_timeout (600 s to have MIN nodes), last_call_timeout (1 s for more of "
                      "them), lease (5 s of silence make a node lost; or keep_alive_interval times "
                      "keep_alive_max_attempt), is_host, control_port. torchrun's other keys have "
                      "no effect.",
              .note = ""},
    // What to run.
    RunOption{.name = "module",
              .letter = 'm',
              .kind = kFlag,
              .value_name = "",
              .help = "The program is a Python module: python -m.",
              .note = ""},
    RunOption{.name = "no-python",
              .kind = kFlag,
              .value_name = "",
              .help = "The program is an executable; the same as writing -- before it.",
              .note = ""},
    RunOption{.name = "run-path",
              .kind = kFlag,
              .support = Support::kRefused,
              .value_name = "",
              .help = "Run the script inside the launcher's interpreter.",
              .note = "there is no Python in the launcher; give the script without --run-path"},
    RunOption{.name = "virtual-local-rank",
              .kind = kFlag,
              .value_name = "",
              .help = "LOCAL_RANK is 0 everywhere and CUDA_VISIBLE_DEVICES names one device.",
              .note = ""},
    // Output.
    RunOption{.name = "log-dir",
              .value_name = "DIR",
              .help = "Keep the output of every rank below this folder. Default: the recipe's "
                      "run.dir/logs; for programs a temporary folder. /dev/null: nowhere.",
              .note = ""},
    RunOption{.name = "redirects",
              .letter = 'r',
              .value_name = "0-3 or RANK:0-3,...",
              .help = "To files instead of the console: 1 stdout, 2 stderr, 3 both.",
              .note = ""},
    RunOption{.name = "tee",
              .letter = 't',
              .value_name = "0-3 or RANK:0-3,...",
              .help = "To files and, with a prefix, to the console.",
              .note = ""},
    RunOption{.name = "local-ranks-filter",
              .value_name = "RANK,...",
              .help = "Show only these ranks on the console.",
              .note = ""},
    RunOption{.name = "events",
              .value_name = "FILE",
              .help = "Append machine-readable events, one JSON object a line. Default: "
                      "agent_events.jsonl in the recipe's run.dir; for programs nowhere. The "
                      "variable is MUSTER_EVENTS.",
              .note = "",
              .has_variable = false,
              .is_torchrun = false},
    RunOption{.name = "duplicate-stdout-filters",
              .support = Support::kRefused,
              .value_name = "TEXT,...",
              .help = "Copy matching lines to one file.",
              .note = "search the files of --log-dir instead"},
    RunOption{.name = "duplicate-stderr-filters",
              .support = Support::kRefused,
              .value_name = "TEXT,...",
              .help = "Copy matching lines to one file.",
              .note = "search the files of --log-dir instead"},
    RunOption{.name = "logs-specs",
              .support = Support::kRefused,
              .value_name = "NAME",
              .help = "A Python plug-in for logs.",
              .note = "there is no Python in the launcher",
              .has_variable = false},
    RunOption{.name = "event-log-handler",
              .support = Support::kRefused,
              .value_name = "NAME",
              .help = "Handler of events: null.",
              .note = "use --events FILE"},
    // Failure.
    RunOption{.name = "shutdown-timeout",
              .value_name = "SECONDS",
              .help = "Between the stop signal and SIGKILL. Default 30, or "
                      "TORCH_ELASTIC_SHUTDOWN_TIMEOUT.",
              .note = ""},
    RunOption{.name = "signals-to-handle",
              .value_name = "NAME,...",
              .help = "Signals that stop the job; they are passed to the workers first. Default "
                      "SIGTERM,SIGINT,SIGHUP,SIGQUIT.",
              .note = ""},
    RunOption{.name = "monitor-interval",
              .support = Support::kNoEffect,
              .value_name = "SECONDS",
              .help = "How often to look at the workers.",
              .note = "a worker's end is an event, nothing is polled"},
    RunOption{.name = "start-method",
              .support = Support::kNoEffect,
              .value_name = "NAME",
              .help = "spawn, fork or forkserver.",
              .note = "workers are always new programs"},
    RunOption{.name = "numa-binding",
              .support = Support::kRefused,
              .value_name = "NAME",
              .help = "Bind workers to NUMA nodes.",
              .note = "not in this version; use numactl",
              .has_variable = false},
};

// Breaks a text at blanks into lines of at most `width` characters.
std::string wrapped(std::string_view text, size_t indent, size_t width) {
  std::string result;
  size_t column = 0;
  for (const std::string& word : split(text, ' ')) {
    if (column > 0 && column + 1 + word.size() > width) {
      result += '\n' + std::string(indent, ' ');
      column = 0;
    } else if (column > 0) {
      result += ' ';
      ++column;
    }
    result += word;
    column += word.size();
  }
  return result;
}
}  // namespace

std::span<const RunOption> run_options() { return kOptions; }

std::string run_help() {
  std::string text =
      "usage: muster run [options] RECIPE.yaml [key=value ...]\n"
      "       muster run [options] -- PROGRAM [argument ...]\n"
      "       muster run [options] [-m] SCRIPT.py [argument ...]\n"
      "\n"
      "Starts this node's workers of a job, restarts them after failures and leaves no process\n"
      "behind. Options go by torchrun's names, with dashes or underscores, and may be\n"
      "shortened. Each also reads an environment variable PET_<NAME>; the command line wins.\n"
      "Python scripts are run by $PYTHON_EXEC or python3.\n"
      "\n"
      "options:\n";
  for (const RunOption& option : kOptions) {
    std::string left = option.letter != 0 ? fmt::format("-{}, ", option.letter) : "    ";
    left += fmt::format("--{} {}", option.name, option.value_name);
    std::string right(option.help);
    if (option.support == Support::kNoEffect) right += fmt::format(" No effect: {}.", option.note);
    if (option.support == Support::kRefused) right += fmt::format(" Refused: {}.", option.note);
    text += fmt::format(
        "  {}\n          {}\n",
        trim(left).starts_with("--") ? "    " + std::string(trim(left)) : std::string(trim(left)),
        wrapped(right, 10, 86));
  }
  text +=
      "\n"
      "A recipe's run leaves in its run.dir: metrics.jsonl, events.jsonl, agent_events.jsonl,\n"
      "recipe.resolved.yaml, checkpoints/, logs/ and after a failure incident-<n>.json; muster\n"
      "report RUN_DIR shows them. Run again, it goes on from the newest checkpoint.\n"
      "\n"
      "examples:\n"
      "  muster run --nproc-per-node 4 configs/recipes/gpt_text_fsdp.yaml train.steps=100\n"
      "  muster run --nproc-per-node 2 --max-restarts 3 train.py --lr 0.1\n"
      "  muster run --nnodes 2 --rdzv-endpoint head:29400 recipe.yaml dist.backend=gloo\n"
      "\n"
      "exit status: 0 success; 2 wrong options; 78 wrong recipe; of a failed worker its own when\n"
      "it is 64-66, 70, 71, 74, 75 or 78, 128+n when signal n killed it, 71 when the memory limit\n"
      "did, otherwise 1; 128+n when signal n stopped the job; 74 when log files are incomplete.\n";
  return text;
}

}  // namespace muster
