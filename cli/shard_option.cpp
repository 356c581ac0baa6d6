#include "cli/shard_option.h"

#include "core/error.h"
#include "runtime/environment.h"

namespace vqgen::cli {
namespace {

LauncherEnvironment read_launcher_environment() {
  return {.slurm_array_task_id = environment_variable("SLURM_ARRAY_TASK_ID"),
          .slurm_array_task_min = environment_variable("SLURM_ARRAY_TASK_MIN"),
          .slurm_array_task_max = environment_variable("SLURM_ARRAY_TASK_MAX"),
          .slurm_array_task_count = environment_variable("SLURM_ARRAY_TASK_COUNT"),
          .slurm_procid = environment_variable("SLURM_PROCID"),
          .slurm_step_num_tasks = environment_variable("SLURM_STEP_NUM_TASKS"),
          .ompi_comm_world_rank = environment_variable("OMPI_COMM_WORLD_RANK"),
          .ompi_comm_world_size = environment_variable("OMPI_COMM_WORLD_SIZE"),
          .pmi_rank = environment_variable("PMI_RANK"),
          .pmi_size = environment_variable("PMI_SIZE")};
}

}  // namespace

LauncherShard choose_shard(const std::string& flag) {
  if (flag.empty()) return {{}, "all of it"};
  if (flag != "auto") return {read_shard(flag, "--shard"), "named by --shard"};
  if (const auto found = find_shard(read_launcher_environment())) return *found;
  throw Error(ErrorKind::bad_input,
              "--shard auto: no launcher: none of SLURM_ARRAY_TASK_ID, SLURM_STEP_NUM_TASKS, "
              "OMPI_COMM_WORLD_RANK and PMI_RANK is set; give --shard I/N");
}

}  // namespace vqgen::cli
