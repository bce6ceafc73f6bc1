// When checkpoints are written, replaced and removed, with faults of the file system in between.
#include "checkpoint/checkpoint_writer.h"

#include <pthread.h>

#include <atomic>
#include <condition_variable>
#include <cstring>
#include <filesystem>
#include <mutex>
#include <thread>

#include "test/checkpoint/trained_run.h"
#include "test/support/catch.h"

using namespace teon;
using namespace teon::test;
namespace fs = std::filesystem;

TEST_CASE(
    "checkpoint/checkpoint_writer: a fault at any file operation leaves a whole checkpoint, and the next save needs no "
    "help") {
    SmallRun run(1000);
    SmallRun loaded;
    const std::vector<float> old_bits = loaded.bits();
    const std::vector<float> new_bits = run.bits();
    FaultyFiles good;
    REQUIRE(loaded.Trained::save(run.folder.path(), 1, good).fault == "");
    const std::string newer = run.checkpoint(2);
    for (FaultyFiles::Kind kind : {FaultyFiles::error, FaultyFiles::short_write, FaultyFiles::crash})
        for (int64_t at = 0;; ++at) {
            FaultyFiles files(kind, at, at % 2 ? EIO : ENOSPC);
            const SaveResult result = run.Trained::save(run.folder.path(), 2, files);
            INFO("fault at operation " << at << " of kind " << kind << ": " << result.fault);
            if (!files.happened) {
                REQUIRE(at > 20);
                REQUIRE(result.fault == "");
                fs::remove_all(newer);
                break;
            }
            if (kind == FaultyFiles::short_write)
                REQUIRE(result.fault == "");  // another call writes the rest
            else
                REQUIRE(contains(result.fault, std::strerror(files.code)));

            const FoundCheckpoint checkpoint_found = run.find();
            REQUIRE(checkpoint_found.passed_over.empty());  // an incomplete checkpoint never has a checkpoint's name
            const bool renamed = checkpoint_found.folder == newer;
            if (!renamed) REQUIRE(checkpoint_found.folder == run.checkpoint(1));
            loaded.fill(2000);
            loaded.read(checkpoint_found.folder);
            REQUIRE(same_bits(loaded.bits(), renamed ? new_bits : old_bits));

            if (!renamed) run.save(2);
            REQUIRE(run.find().folder == newer);
            fs::remove_all(newer);
        }
}

TEST_CASE("checkpoint/checkpoint_writer: a reader finds a checkpoint while the run replaces them") {
    SmallRun run;
    CheckpointWriter writer = run.writer(1);
    REQUIRE(run.save(writer, 1, 0) == "");
    for (int64_t step = 2; step < 40; ++step) {
        std::atomic<bool> saved = false;
        const std::jthread saving([&] {
            run.save(writer, step, 0);
            saved = true;
        });
        while (!saved) {
            const FoundCheckpoint checkpoint_found = run.find();
            REQUIRE(!checkpoint_found.folder.empty());
            REQUIRE(checkpoint_found.passed_over.empty());
        }
    }
}

TEST_CASE(
    "checkpoint/checkpoint_writer: training goes on while a checkpoint is written, which holds what was when it "
    "began") {
    struct Slow : FaultyFiles {
        std::mutex mutex;
        std::condition_variable changed;
        bool open = false;
        int make_folder(const std::string& path) override {
            std::unique_lock lock(mutex);
            changed.wait(lock, [&] { return open; });
            return FaultyFiles::make_folder(path);
        }
        void let_go() {
            std::lock_guard lock(mutex);
            open = true;
            changed.notify_all();
        }
    } files;
    TempDir folder;
    Trained run(1);
    Trained loaded(1000);
    const std::vector<float> before = run.bits();
    CheckpointWriter writer(run.plan(folder.path()), run.model->params(), run.optimizer->state(), files);
    writer.save(Trained::state(1), run.ctx.stream);
    REQUIRE(!writer.result(false));  // in flight
    run.fill(500);
    const std::vector<float> after = run.bits();
    files.let_go();
    writer.save(Trained::state(2), run.ctx.stream);  // waits for the first save
    REQUIRE(list_checkpoints(folder.path()).front() == 1);
    REQUIRE(writer.result(true)->step == 2);
    REQUIRE(!writer.result(true));
    for (auto [step, bits] : {std::pair{1, &before}, {2, &after}}) {
        loaded.read(folder / checkpoint_name(step));
        REQUIRE(same_bits(loaded.bits(), *bits));
    }
}

TEST_CASE("checkpoint/checkpoint_writer: old ones are removed but for the last few and every so many") {
    SmallRun run;
    CheckpointWriter writer = run.writer(2, 40);
    for (int64_t step = 10; step <= 90; step += 10) REQUIRE(run.save(writer, step) == "");
    REQUIRE(run.steps() == std::vector<int64_t>{40, 80, 90});
    REQUIRE(run.save(writer, 100) == "");
    REQUIRE(run.steps() == std::vector<int64_t>{40, 80, 90, 100});
    // A save succeeds even if the removal of old checkpoints fails. The first operation after the save's own fails:
    FaultyFiles counting;
    const TempDir other;
    REQUIRE(run.Trained::save(other.path(), 110, counting).fault == "");
    run.files.calls = 0;
    run.files.fault_at = counting.calls;
    writer.save(Trained::state(110), run.ctx.stream);
    const SaveResult result = *writer.result(true);
    REQUIRE(result.fault == "");
    REQUIRE(contains(result.warning, "step_00000090"));
    REQUIRE(checkpoint_fault(result.folder) == std::nullopt);
}

TEST_CASE(
    "checkpoint/checkpoint_writer: the last good one is never removed, and weights that are not finite are never "
    "saved") {
    SmallRun run;
    CheckpointWriter writer = run.writer(2);
    auto save = [&](int64_t step, int skipped) { return run.save(writer, step, skipped); };
    REQUIRE(newest_good_checkpoint(run.folder.path()) == std::nullopt);
    for (int64_t step = 10; step <= 40; step += 10) REQUIRE(save(step, 0) == "");
    REQUIRE(run.steps() == std::vector<int64_t>{30, 40});
    for (int64_t step = 50; step <= 90; step += 10) REQUIRE(save(step, static_cast<int>(step) - 40) == "");
    REQUIRE(run.steps() == std::vector<int64_t>{40, 80, 90});
    REQUIRE(newest_good_checkpoint(run.folder.path()) == 40);
    REQUIRE(save(100, 0) == "");
    REQUIRE(run.steps() == std::vector<int64_t>{90, 100});

    for (float bad : {NAN, INFINITY, -INFINITY}) {
        const ParamRow& row = run.model->table()[1];
        put(run.model->params().master(1) + row.size() - 1, std::vector{bad}, run.ctx.stream);
        REQUIRE(save(110, 0).find(fmt::format("the weights of {} are not finite", row.name)) == 0);
        REQUIRE(run.steps() == std::vector<int64_t>{90, 100});
        REQUIRE(newest_good_checkpoint(run.folder.path()) == 100);
    }
}

TEST_CASE("checkpoint/checkpoint_writer: the last good checkpoint has been read back and verified") {
    SmallRun run;
    CheckpointWriter all = run.writer();
    CheckpointWriter last = run.writer(1);
    for (int64_t step : {10, 20, 25}) REQUIRE(run.save(all, step, 0) == "");
    const std::string weights = run.checkpoint(25) + "/model.safetensors";
    std::string bytes = read_file(weights);
    bytes[bytes.size() / 2] ^= 4;
    write_file(weights, bytes);
    REQUIRE(run.save(last, 30, 1) == "");
    REQUIRE(run.steps() == std::vector<int64_t>{20, 30});
    REQUIRE(newest_good_checkpoint(run.folder.path()) == 20);
}

TEST_CASE("checkpoint/checkpoint_writer: a fault at any file operation of a removal leaves whole checkpoints") {
    for (FaultyFiles::Kind kind : {FaultyFiles::error, FaultyFiles::crash})
        for (int64_t at = 0;; ++at) {
            SmallRun run;
            for (int64_t step = 1; step <= 4; ++step) run.save(step);
            FaultyFiles files(kind, at);
            const std::string fault = run.writer(2, 0, files).remove_old(4);
            INFO("fault at operation " << at << " of kind " << kind << ": " << fault);
            REQUIRE(fault.empty() == !files.happened);
            for (int64_t step : run.steps()) REQUIRE(!checkpoint_fault(run.checkpoint(step)));
            REQUIRE(run.find().folder == run.checkpoint(4));
            if (files.happened) continue;
            REQUIRE(at == 4);  // two operations for each of two checkpoints
            REQUIRE(run.steps() == std::vector<int64_t>{3, 4});
            break;
        }
}

TEST_CASE("checkpoint/checkpoint_writer: a save whose thread cannot be created is not reported as saved") {
    SmallRun run;
    CheckpointWriter writer = run.writer();
    REQUIRE(run.save(writer, 1) == "");
    pthread_attr_t before;
    pthread_attr_t huge;  // no address space has room for a stack of 2^60 bytes
    REQUIRE((pthread_getattr_default_np(&before) == 0 && pthread_getattr_default_np(&huge) == 0));
    REQUIRE((pthread_attr_setstacksize(&huge, size_t{1} << 60) == 0 && pthread_setattr_default_np(&huge) == 0));
    const auto save = [&] { writer.save(Trained::state(2), run.ctx.stream); };
    REQUIRE_THROWS_AS(save(), std::system_error);
    REQUIRE(pthread_setattr_default_np(&before) == 0);
    REQUIRE(!writer.result(true));
    REQUIRE(run.save(writer, 2) == "");
    REQUIRE(run.steps() == std::vector<int64_t>{1, 2});
}

TEST_CASE(
    "checkpoint/checkpoint_writer: the next checkpoint replaces an interim one, unless that is the last good one") {
    SmallRun run;
    CheckpointWriter writer = run.writer();
    auto save = [&](int64_t step, bool interim, int skipped) {
        REQUIRE(run.save(writer, step, skipped, interim) == "");
    };
    save(10, false, 0);
    save(15, true, 0);
    REQUIRE(run.steps() == std::vector<int64_t>{10, 15});
    REQUIRE(read_training_state(run.checkpoint(15)).interim);
    save(20, false, 0);
    REQUIRE(run.steps() == std::vector<int64_t>{10, 20});
    save(25, true, 0);
    save(27, true, 3);
    save(30, false, 6);
    REQUIRE(run.steps() == std::vector<int64_t>{10, 20, 25, 30});
}

TEST_CASE("checkpoint/checkpoint_writer: the best one stays until another is the best") {
    SmallRun run;
    CheckpointWriter last = run.writer(1);
    CheckpointWriter all = run.writer();
    const TempDir& folder = run.folder;
    REQUIRE(best_checkpoint(folder.path()) == std::nullopt);
    REQUIRE(last.mark_best(5, Trained::loss_of(5)) == "");  // no such checkpoint
    REQUIRE(best_checkpoint(folder.path()) == std::nullopt);
    REQUIRE(run.save(last, 10, 0, true, true) == "");
    REQUIRE(best_checkpoint(folder.path()) == 10);
    REQUIRE(fs::read_symlink(folder / "best") == "step_00000010");  // relative: a run's folder can be moved
    const Json best = read_json(folder / "best.json");
    REQUIRE(best["step"] == int64_t{10});
    REQUIRE(best["loss"] == Trained::loss_of(10));
    for (int64_t step = 20; step <= 40; step += 10) REQUIRE(run.save(last, step, 0) == "");
    REQUIRE(run.steps() == std::vector<int64_t>{10, 40});
    REQUIRE(last.mark_best(40, Trained::loss_of(40)) == "");
    REQUIRE(best_checkpoint(folder.path()) == 40);
    REQUIRE(run.save(last, 50, 0) == "");
    REQUIRE(run.steps() == std::vector<int64_t>{40, 50});
    REQUIRE(last.mark_best(50, Trained::loss_of(50)) == "");
    // Where all are kept, a best one that was not due is replaced.
    REQUIRE(run.save(all, 60, 0, true, true) == "");
    REQUIRE(run.save(all, 70, 0, true, true) == "");
    REQUIRE(run.save(all, 80, 0) == "");
    REQUIRE(run.steps() == std::vector<int64_t>{40, 50, 70, 80});
    fs::rename(run.checkpoint(70), run.checkpoint(70) + ".damaged");
    REQUIRE(best_checkpoint(folder.path()) == std::nullopt);
}

TEST_CASE(
    "checkpoint/checkpoint_writer: after a fault at any file operation, the best one is the old one or the new one, "
    "whole") {
    for (const bool due : {false, true})  // a checkpoint that was due has been saved when it turns out to be the best
        for (FaultyFiles::Kind kind : {FaultyFiles::error, FaultyFiles::crash})
            for (int64_t at = 0;; ++at) {
                SmallRun run;
                FaultyFiles files(kind, at);
                CheckpointWriter good = run.writer(1);
                CheckpointWriter writer = run.writer(1, 0, files);
                REQUIRE(run.save(good, 1, 0, true, true) == "");
                if (due) REQUIRE(run.save(good, 2, 0) == "");
                std::string fault;
                bool saved = true;
                if (due) {
                    fault = writer.mark_best(2, Trained::loss_of(2));
                } else {
                    TrainingState state = Trained::state(2);
                    state.control.skipped_in_row = 0;
                    writer.save(state, run.ctx.stream, nullptr, 0, Trained::loss_of(2));
                    const SaveResult result = *writer.result(true);
                    fault = result.fault + result.warning;
                    saved = result.fault.empty();
                }
                INFO("fault at operation " << at << " of kind " << kind << ": " << fault);
                REQUIRE(fault.empty() == !files.happened);
                const std::optional<int64_t> best = best_checkpoint(run.folder.path());
                REQUIRE((best == 1 || best == 2));
                REQUIRE(!checkpoint_fault(run.checkpoint(*best)));
                // After an error the same run saves again, and removes neither.
                if (kind == FaultyFiles::error && saved && files.happened) {
                    REQUIRE(run.save(writer, 3, 0) == "");
                    REQUIRE(best_checkpoint(run.folder.path()) == 2);
                    fs::remove_all(run.checkpoint(3));
                }
                // The resumed run marks it again, and needs no help.
                if (!fs::exists(run.checkpoint(2))) REQUIRE(run.save(good, 2, 0) == "");
                REQUIRE(good.mark_best(2, Trained::loss_of(2)) == "");
                REQUIRE(best_checkpoint(run.folder.path()) == 2);
                REQUIRE(good.remove_old(2) == "");
                REQUIRE(run.steps() == std::vector<int64_t>{2});
                if (!files.happened) break;
            }
}

TEST_CASE("checkpoint/checkpoint_writer: the best one stays where no link can be made, or its name is taken") {
    struct NoLinks : FileOps {
        int link(const std::string&, const std::string&) override {
            errno = EPERM;
            return -1;
        }
    } no_links;
    for (const bool taken : {false, true}) {
        SmallRun run;
        const std::string link = run.folder / "best";
        if (taken) std::ofstream(link) << "mine";
        CheckpointWriter writer = run.writer(1, 0, no_links);
        for (int64_t step = 1; step <= 3; ++step) REQUIRE(run.save(writer, step, 0, true, step == 1) == "");
        REQUIRE(run.steps() == std::vector<int64_t>{1, 3});
        REQUIRE(best_checkpoint(run.folder.path()) == 1);
        const std::string fault = writer.mark_best(3, 0.1);
        REQUIRE(fault.ends_with("; best.json names the best checkpoint"));
        REQUIRE(fault.find(taken ? "is not a link" : "cannot link: Operation not permitted") != std::string::npos);
        REQUIRE(best_checkpoint(run.folder.path()) == 3);
        if (taken) REQUIRE(fs::file_size(link) == 4);
    }
}

TEST_CASE("checkpoint/checkpoint_writer: nothing is removed until the best one is marked") {
    SmallRun run;
    CheckpointWriter all = run.writer();
    for (const int64_t step : {1, 2}) REQUIRE(run.save(all, step, 0) == "");
    FaultyFiles files(FaultyFiles::error, 1);
    CheckpointWriter writer = run.writer(1, 0, files);
    REQUIRE(writer.mark_best(1, 0.5).find("best.json.tmp: cannot create") != std::string::npos);
    REQUIRE(writer.remove_old(2) == "");
    REQUIRE(run.steps() == std::vector<int64_t>{1, 2});
    REQUIRE(run.save(writer, 3, 0) == "");  // which tries again
    REQUIRE(best_checkpoint(run.folder.path()) == 1);
    REQUIRE(run.steps() == std::vector<int64_t>{1, 3});
}

TEST_CASE("checkpoint/checkpoint_writer: runs of version 0.2.0 have a link and no best.json") {
    SmallRun run;
    CheckpointWriter writer = run.writer(1);
    REQUIRE(run.save(writer, 1, 0) == "");
    fs::create_symlink("step_00000001", run.folder / "best");
    REQUIRE(run.save(writer, 2, 0) == "");
    REQUIRE(run.steps() == std::vector<int64_t>{1, 2});
}

TEST_CASE("checkpoint/checkpoint_writer: nothing is saved if the log cannot be written") {
    SmallRun run;
    CheckpointPlan plan = run.plan(run.folder.path());
    bool full = true;
    plan.sync_log = [&] {
        if (full) throw Error("metrics.jsonl: 3 lines cannot be written");
    };
    CheckpointWriter writer(plan, run.model->params(), run.optimizer->state(), run.files);
    REQUIRE(run.save(writer, 1) == "metrics.jsonl: 3 lines cannot be written");
    REQUIRE(fs::is_empty(run.folder.path()));
    full = false;
    REQUIRE(run.save(writer, 1) == "");
    REQUIRE(run.steps() == std::vector<int64_t>{1});
}
