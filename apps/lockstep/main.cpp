#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <iostream>
#include <iterator>
#include <string>
#include <vector>

#include "apps/lockstep/findings.h"
#include "apps/lockstep/inspect.h"
#include "apps/lockstep/plan.h"
#include "apps/lockstep/plot.h"
#include "apps/lockstep/run.h"
#include "apps/lockstep/tune.h"
#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/train/checkpoint/errors.h"
#include "lockstep/version.h"

namespace {

namespace app = lockstep::app;

constexpr const char* kRunHelp =
    "Starts the workers of a training job and watches them.\n\n"
    "  lockstep run -n 4 ./train --epochs 3       four workers on this machine\n"
    "  lockstep run -H a:2,b:2 ./train            prints the command for each host; --ssh runs them\n"
    "  lockstep run ./train                       inside a Slurm allocation: through srun, as many workers as tasks\n\n"
    "Each worker gets its place in the job as TF_CONFIG, and its lines are printed with its name in front. When one\n"
    "fails, the others are stopped and the cause is printed once. Workers read nothing from standard input.";
constexpr const char* kRunFooter =
    "\nExit codes: the failed worker's (1 error, 2 usage, 3 a peer was lost, 4 data, 5 checkpoint), 1 if it\n"
    "crashed, 3 if it was killed, 143 after SIGTERM or SIGHUP, 130 after Ctrl-C.";

// CLI11's own ranges accept NaN, and their texts vary by version.
CLI::Validator within(int least, int most) {
  const auto check = [least, most](std::string& text) {
    double number = -1;
    const bool fits = CLI::detail::lexical_cast(text, number) && number >= least && number <= most;
    return fits ? "" : lockstep::str("must be a number from ", least, " to ", most, ", got '", text, "'");
  };
  return {check, ""};
}
const CLI::Validator kNotNegative = within(0, 1'000'000);

CLI::App* add_run(CLI::App& cli, app::RunRequest& request) {
  auto* run = cli.add_subcommand("run", kRunHelp)->footer(kRunFooter)->prefix_command();
  run->add_option("-n,--workers", request.workers, "Workers on this machine, at most 4096")->check(within(1, 4096));
  run->add_flag("--evaluator", request.evaluator,
                "With -n: also start the program as the evaluator. Once all workers have ended well it has --grace "
                "seconds to end, and is stopped then; if it fails, the job fails");
  run->add_option("-H,--hosts", request.hosts, "Machines and workers on each: host:slots,host:slots");
  run->add_option("--hostfile", request.hostfile, "The same as a file, one 'host:slots' or 'host slots=2' per line");
  run->add_flag("--ssh", request.ssh, "Start the workers on the hosts through ssh, in this folder there");
  run->add_option("--port", request.port, "First port on each host (default 2222)")->check(within(1, 65535));
  run->add_option("--restarts", request.restart.restarts, "Start all workers again up to K times after a failure")
      ->check(kNotNegative);
  run->add_option("--log-dir", request.watch.log_dir, "Also write each worker's output to a file in this folder");
  const auto add_seconds = [&](const char* name, app::Seconds& value, const char* help) {
    run->add_option_function<double>(
           name, [&value](double seconds) { value = app::Seconds(seconds); }, help)
        ->check(kNotNegative);
  };
  add_seconds("--grace", request.watch.grace, "Seconds that workers get to stop after a signal (default 30)");
  add_seconds("--failure-grace", request.watch.failure_grace,
              "Seconds that the others get to end by themselves after one has failed (default 5)");
  // Hidden: passed by launchers to each other.
  run->add_option("--host-index", request.host_index)->group("");
  run->add_option("--generation", request.generation)->group("");
  run->add_option("--run-id", request.run_id)->group("");
  run->add_flag("--key-on-stdin", request.key_on_stdin)->group("");
  return run;
}

constexpr const char* kPlotHelp =
    "Draws the curves of trainings into an SVG file.\n\n"
    "  lockstep plot logs                         training and validation of one run\n"
    "  lockstep plot runs/a runs/b -m loss -s 0.9 two runs compared, one metric, smoothed\n\n"
    "Reads CSV files, JSON lines and event files of TensorBoard, also in the folders of a folder.";

CLI::App* add_plot(CLI::App& cli, app::PlotRequest& request) {
  auto* plotting = cli.add_subcommand("plot", kPlotHelp);
  plotting->add_option("logs", request.logs, "Folders or files with logs; each is a run")->required();
  plotting->add_option("-o,--out", request.out, "The file to write (default curves.svg); '-' is standard output");
  plotting->add_option("-m,--metric", request.only, "Draw only this metric; can be repeated")->allow_extra_args(false);
  plotting->add_option("-s,--smoothing", request.smoothing, "From 0 (default) to 0.999: the weight of earlier values");
  plotting->add_option("-t,--title", request.title, "A line above the charts");
  plotting->add_flag("--log", request.log_scale, "Values on a logarithmic scale");
  return plotting;
}

constexpr const char* kTuneHelp =
    "Measures which number of replicas is fastest for a program on this machine.\n\n"
    "  lockstep tune -- ./train --epochs 3        a few steps with 1, 2, 4, ... replicas, up to the number of cores\n"
    "  lockstep tune --remember -- ./train        also remembers the number, for ls::best_cpus()\n"
    "  lockstep tune -r 2 -r 3 -- ./train         only these\n\n"
    "The program is started once for each number and round, and killed after a few steps. Its strategies get that many\n"
    "replicas instead of the devices that it names; ls::save, checkpoints and logs write nothing, and no training is\n"
    "resumed. What it writes by itself is written. Programs with GPUs or several workers are refused.";

CLI::App* add_tune(CLI::App& cli, app::TuneCommand& command) {
  auto* tuning = cli.add_subcommand("tune", kTuneHelp)->prefix_command();
  tuning->add_option("-s,--seconds", command.seconds, "For all measurements together (default 50)")
      ->check(within(1, 100'000));
  tuning
      ->add_option("--rounds", command.rounds,
                   "Measure each number so many times, in turns, if time allows (default 3)")
      ->check(within(1, 100));
  tuning->add_option("-r,--replicas", command.replicas, "Try this number; can be repeated (default 1, 2, 4, ...)")
      ->check(within(1, 4096))
      ->allow_extra_args(false);
  tuning->add_flag("--remember", command.remember,
                   "Write the number to $XDG_CACHE_HOME/lockstep/replicas, or ~/.cache/lockstep/replicas");
  return tuning;
}

int explain(const std::string& text) {
  const auto begin = text.find_first_of("0123456789");  // in "L104", "104" or "error[L104]"
  int number = 0;
  if (begin != text.npos) std::from_chars(text.data() + begin, text.data() + text.size(), number);
  const auto paragraph = lockstep::explain(number);
  if (paragraph.empty())
    throw app::UsageError("no error has the number '" + text + "': write it as printed, such as L104");
  std::cout << "L" << number << ": " << paragraph << "\n";
  return app::kOk;
}

int usage_error(const std::string& what, const std::string& command) {
  std::cerr << "lockstep: " << what << " (see 'lockstep " << command << "--help')\n";
  return app::kUsage;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App cli("Lockstep: synchronous data-parallel training on LibTorch.", "lockstep");
  cli.set_version_flag("--version", "lockstep " LOCKSTEP_VERSION);
  cli.require_subcommand(1);
  app::RunRequest request;
  auto* run = add_run(cli, request);
  std::string number;
  auto* explaining = cli.add_subcommand("explain", "Explains an error: lockstep explain L104");
  explaining->add_option("number", number, "As printed in error[L104]")->required();
  std::string path;
  auto* inspecting = cli.add_subcommand("inspect", "Shows what a checkpoint or a file holds");
  auto* verifying =
      cli.add_subcommand("verify", "Reads all of a checkpoint or a file; exit code 5 or 4 if it is damaged");
  for (auto* command : {inspecting, verifying}) {
    command
        ->add_option("path", path,
                     "A checkpoint, a folder of checkpoints, an event file, a TFRecord or safetensors file")
        ->required();
  }
  app::PlotRequest plot_request;
  auto* plotting = add_plot(cli, plot_request);
  app::TuneCommand tune_command;
  auto* tuning = add_tune(cli, tune_command);
  std::string tf_config_file;
  auto* examining = cli.add_subcommand("doctor", "Checks this machine and the cluster it will join.");
  examining->add_option("--tf-config", tf_config_file, "A file with the text of TF_CONFIG; '-' is standard input");
  try {
    // The words after "--" are not ours; CLI11 wants the last argument first.
    const std::vector<std::string> words(argv + 1, argv + argc);
    const auto dashes = std::ranges::find(words, "--");
    cli.parse(std::vector<std::string>(std::reverse_iterator(dashes), words.rend()));
    if (*explaining) return explain(number);
    if (*examining) return app::doctor(tf_config_file);
    if (*inspecting) return app::inspect(path);
    if (*verifying) return app::verify(path);
    if (*plotting) return app::plot(plot_request);
    auto& program = *tuning ? tune_command.program : request.program;
    program = (*tuning ? tuning : run)->remaining();
    const bool ours = program.empty() && dashes != words.end();
    program.insert(program.end(), ours ? dashes + 1 : dashes, words.end());
    return *tuning ? app::tune(tune_command) : app::run(std::move(request));
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return cli.exit(error);
    const bool is_named = !cli.get_subcommands().empty();
    return usage_error(is_named ? error.what() : "name a command: run, tune, doctor, explain, inspect, verify or plot",
                       *run      ? "run "
                       : *tuning ? "tune "
                                 : "");
  } catch (const app::UsageError& error) {
    return usage_error(error.what(), *run ? "run " : *tuning ? "tune " : "");
  } catch (const lockstep::Error& error) {
    std::cerr << error.what() << "\n";
    if (!*inspecting && !*verifying && !*plotting) return app::kProgramError;
    if (error.number() == lockstep::errors::kBadOption) return app::kUsage;
    return error.number() == lockstep::errors::kCheckpoint ? app::kCheckpoint : app::kData;
  } catch (const std::exception& error) {
    std::cerr << "lockstep: " << error.what() << "\n";
    return app::kProgramError;
  }
}
