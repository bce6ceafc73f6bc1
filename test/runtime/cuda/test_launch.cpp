#include "runtime/cuda/launch.h"

#include <cstdlib>
#include <map>
#include <string>
#include <vector>

#include "base/check.h"
#include "runtime/cuda/exchange.h"
#include "test/support/catch.h"

using namespace teon;

namespace {

// Has exactly these of the variables that launchers other than MPI's set. Restores the others at its end.
class Environment {
public:
    explicit Environment(std::map<std::string, std::string> variables) {
        for (const char* name :
             {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "NCCL_COMM_ID",
              "TORCHELASTIC_USE_AGENT_STORE", "PMIX_RANK", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_STEP_NUM_TASKS",
              "SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_JOB_ID", "SLURM_STEP_ID"}) {
            if (const char* value = std::getenv(name)) before_[name] = value;
            ::unsetenv(name);
            names_.push_back(name);
        }
        for (const auto& [name, value] : variables) ::setenv(name.c_str(), value.c_str(), 1);
    }
    ~Environment() {
        for (const char* name : names_) ::unsetenv(name);
        for (const auto& [name, value] : before_) ::setenv(name.c_str(), value.c_str(), 1);
    }

private:
    std::vector<const char*> names_;
    std::map<std::string, std::string> before_;
};

}  // namespace

TEST_CASE("runtime/cuda/launch: NCCL listens at the launcher's address, in the form that NCCL_COMM_ID has") {
    struct Case {
        const char *host, *store, *address;
    };
    for (const Case& c :
         {Case{"10.0.0.1", "", "10.0.0.1:2950"}, Case{"gpu07", "", "gpu07:2950"}, Case{"fd00::1", "", "[fd00::1]:2950"},
          Case{"gpu07", "True", "gpu07:2951"}}) {  // torchrun itself listens at MASTER_PORT
        const Environment set({{"RANK", "1"},
                               {"WORLD_SIZE", "2"},
                               {"MASTER_ADDR", c.host},
                               {"MASTER_PORT", "2950"},
                               {"TORCHELASTIC_USE_AGENT_STORE", c.store}});
        REQUIRE(address_of_rank_0(launch_from_environment()) == c.address);
        REQUIRE(std::string(std::getenv("NCCL_COMM_ID")) == c.address);
    }
}

TEST_CASE("runtime/cuda/launch: an address of the user's comes first, and none at all is a usage error") {
    const std::map<std::string, std::string> ranks = {{"RANK", "0"}, {"WORLD_SIZE", "2"}};
    {
        const Environment set(ranks);
        REQUIRE_THROWS_AS(address_of_rank_0(launch_from_environment()), UsageError);
        REQUIRE(std::getenv("NCCL_COMM_ID") == nullptr);
    }
    std::map<std::string, std::string> variables = ranks;
    variables["MASTER_ADDR"] = "gpu07";
    variables["MASTER_PORT"] = "2950";
    variables["NCCL_COMM_ID"] = "10.0.0.1:4000";
    const Environment set(variables);
    REQUIRE(address_of_rank_0(launch_from_environment()) == "10.0.0.1:4000");
}

TEST_CASE(
    "runtime/cuda/launch: the ranks of a Slurm step agree on a port of its first node, and other steps have another") {
    const auto address = [](const char* rank, const char* step) {
        const Environment set({{"SLURM_PROCID", rank},
                               {"SLURM_STEP_NUM_TASKS", "16"},
                               {"SLURM_STEP_NODELIST", "gpu[07-09,12],login"},
                               {"SLURM_JOB_ID", "1234"},
                               {"SLURM_STEP_ID", step}});
        return address_of_rank_0(launch_from_environment());
    };
    REQUIRE(address("0", "0").starts_with("gpu07:2"));
    REQUIRE(address("0", "0") == address("15", "0"));
    REQUIRE(address("0", "0") != address("0", "1"));
    REQUIRE(first_host("a,b[1-2]") == "a");
    REQUIRE(first_host("n[3,5]-ib,x") == "n3-ib");
}
