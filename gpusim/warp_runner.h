// Runs one warp of a block. The lanes that are at the same instruction form a group. Of the groups that can run, the
// group furthest behind in the code runs first, so that lanes reconverge where their paths join. In random orders, any
// group may run first, and groups are divided at random unless an instruction keeps them together ("Independent Thread
// Scheduling").
#pragma once

#include <vector>

#include "base/integer.h"
#include "gpusim/warp.h"
#include "gpusim/warpgroup.h"

namespace teon::gpusim {

inline uint64_t pick(Block& b, uint64_t n) { return splitmix64(b.random) % n; }

class WarpRunner {
public:
    WarpRunner(Warp& w, bool random) : w_(w), code_(w.program->code), random_(random) {}

    bool can_run() const { return w_.live && !w_.at_barrier && !w_.blocked; }
    // Returns whether a group of the blocked warp can run again.
    bool wakes();
    [[noreturn]] void report_endless();
    // Runs the warp until all lanes have returned or wait at a barrier, or a poll blocks it.
    void run() {
        while (can_run()) run_some();
    }
    // Runs one group until it divides or waits; in random orders, for a few instructions at most.
    void run_some();
    void divide();

private:
    const Instruction& instruction(const Group& g) const { return code_[static_cast<size_t>(g.at)]; }
    // Returns whether the group waits at a wgmma.wait_group.
    bool is_product_wait(const Group& g) const { return g.waits && instruction(g).run == &wgmma_wait; }
    bool is_able(const Group& g);
    void merge();
    // Returns the index of the group to run next, or -1 if all groups wait.
    int choose();
    // All groups wait: joins the lanes at the same instruction, and lets those pass for which all lanes that they need
    // are there. If all live lanes wait at a barrier, the warp does.
    void resolve();
    [[noreturn]] void report_deadlock();
    // Executes the instruction for those of `lanes` that find all lanes they need among them; returns these. `here`
    // adds the lanes at the instruction whose guard is false.
    Lanes meet(const Instruction& i, Lanes lanes, Lanes here);
    Lanes guarded(const Instruction& i, Lanes lanes);
    // Counts a branch back. Returns whether other warps should run first, and then blocks this one until they have.
    bool lets_others_run(const Instruction& i);
    enum class Polled { ready, refused, waits };
    // Runs a poll unless it has to wait.
    Polled poll(const Instruction& i, Lanes lanes);
    // Runs an instruction that is not plain for these lanes of the group, which is at it. Returns whether the group can
    // go on: it has not divided, does not wait, and no other group or warp should run first.
    bool run_control(size_t index, const Instruction& i, Lanes lanes);
    // Runs the group until it divides, waits or returns, or another group should run: when this group reaches another
    // group's instruction, branches back, or, in random orders, has run a few instructions.
    void run_group(size_t index);

    Warp& w_;
    const std::vector<Instruction>& code_;
    const bool random_;
};

}  // namespace teon::gpusim
