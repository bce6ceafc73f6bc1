#include "cpu/stream.h"

#include <algorithm>

#include "cpu/counts.h"
#include "cpu/engine.h"

using namespace teon::cpu;

namespace teon::cpu {

namespace {

// Decides which calls of this thread captures forbid.
thread_local cudaStreamCaptureMode thread_mode = cudaStreamCaptureModeGlobal;

cudaError_t refuse_broken(cudaStream_t stream, const char* what) {
    if (!stream->capture || !stream->capture->broken_by) return cudaSuccess;
    return fail(cudaErrorStreamCaptureInvalidated, "{}: the stream's capture was broken by {}", what,
                stream->capture->broken_by);
}

cudaError_t add(cudaStream_t stream, const char* what, std::function<void()> work, bool async) {
    stream = actual_stream(stream);
    Call call(what, stream);
    if (call.status != cudaSuccess) return call.status;
    if (const cudaError_t status = refuse_broken(stream, what)) return status;
    if (runs_in_call(stream, work, async)) {
        call.lock.unlock();
        work();
        return cudaSuccess;
    }
    call.e.append(stream, what, std::move(work));
    return cudaSuccess;
}

void wait_for_all_of(Call& call, cudaStream_t stream) {
    if (!has_unfinished_work(stream)) return;
    ++counters.waits;
    const std::vector<OperationPtr> targets = stream->predecessors;
    for (const OperationPtr& target : targets) run_until_done(call.lock, target);
}

template <typename T>
cudaError_t make(const char* what, T** handle) {
    const Call call(what);
    if (call.status == cudaSuccess) call.e.alive.insert(*handle = new T);
    return call.status;
}

}  // namespace

bool run_everything() {
    Engine& e = engine();
    std::unique_lock lock(e.mutex);
    if (e.unfinished == 0) return false;
    run_all(lock);
    return true;
}

cudaError_t enqueue(cudaStream_t stream, const char* what, std::function<void()> work) {
    return add(stream, what, std::move(work), false);
}
cudaError_t enqueue_async(cudaStream_t stream, const char* what, std::function<void()> work) {
    return add(stream, what, std::move(work), true);
}

cudaError_t check_device(cudaStream_t stream, const char* what) {
    if (at_once(stream)) return cudaSuccess;  // nothing of another device is
    stream = actual_stream(stream);
    const Call call(what, stream);
    if (call.status != cudaSuccess || stream->device == current_device()) return call.status;
    return fail(cudaErrorInvalidResourceHandle, "{}: the stream is of device {}, and the thread's is {}", what,
                stream->device, current_device());
}

bool is_capturing(cudaStream_t stream) {
    stream = actual_stream(stream);
    const std::lock_guard lock(engine().mutex);
    return engine().alive.contains(stream) && stream->capture;
}

cudaError_t wait_for(cudaStream_t stream, const char* what) {
    if (at_once(stream)) return device_error();
    stream = actual_stream(stream);
    Call call(what, stream);
    if (call.status != cudaSuccess) return call.status;
    if (stream->capture) return call.breaks(*stream->capture, cudaErrorStreamCaptureUnsupported);
    wait_for_all_of(call, stream);
    return device_error();
}

cudaError_t refuse_in_capture(const char* what) {
    Call call(what);
    for (const auto& capture : call.e.captures) {
        const bool is_own = capture->thread == std::this_thread::get_id();
        if (is_own ? capture->mode != cudaStreamCaptureModeRelaxed && thread_mode != cudaStreamCaptureModeRelaxed
                   : capture->mode == cudaStreamCaptureModeGlobal && thread_mode == cudaStreamCaptureModeGlobal)
            return call.breaks(*capture, cudaErrorStreamCaptureUnsupported);
    }
    return call.status;
}

}  // namespace teon::cpu

// ---- streams -----------------------------------------------------------------------------------------------------

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int) {
    if (flags != cudaStreamNonBlocking && !has_blocking_streams())
        return fail(cudaErrorInvalidValue,
                    "only streams with cudaStreamNonBlocking are supported, which do not wait for the default stream");
    const cudaError_t status = make("cudaStreamCreate", stream);
    if (status == cudaSuccess && flags != cudaStreamNonBlocking) {
        const std::lock_guard lock(engine().mutex);
        engine().blocking.push_back(*stream);
    }
    return status;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
    return cudaStreamCreateWithPriority(stream, flags, 0);
}

// Work that the stream still has is run nevertheless.
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
    Call call("cudaStreamDestroy", stream);
    if (!call.e.alive.erase(stream)) return call.status;
    std::erase(call.e.blocking, stream);
    if (const std::shared_ptr<Capture> capture = stream->capture) {
        if (!capture->broken_by) capture->broken_by = call.what;
        if (capture->origin == stream) call.e.end(capture);  // only this stream could end it
        std::erase(capture->streams, stream);
    }
    if (stream->has_worker) {
        stream->destroyed = true;
        call.e.changed.notify_all();
    } else {
        delete stream;
    }
    return call.status;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) { return wait_for(stream, "cudaStreamSynchronize"); }

cudaError_t cudaDeviceSynchronize() {
    if (const cudaError_t status = refuse_in_capture("cudaDeviceSynchronize")) return status;
    if (run_everything()) ++counters.waits;
    return device_error();
}

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
    std::swap(*mode, thread_mode);
    return device_error();
}

cudaError_t cudaStreamQuery(cudaStream_t stream) {
    stream = actual_stream(stream);
    Call call("cudaStreamQuery", stream);
    if (call.status != cudaSuccess) return call.status;
    if (stream->capture) return call.breaks(*stream->capture, cudaErrorStreamCaptureUnsupported);
    return has_unfinished_work(stream) ? fail(cudaErrorNotReady, "not ready") : cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
    stream = actual_stream(stream);
    Call call("cudaStreamWaitEvent", stream);
    if (call.status == cudaSuccess && !call.e.alive.contains(event))
        call.status = fail(cudaErrorInvalidResourceHandle, "cudaStreamWaitEvent: an event that does not exist");
    if (call.status != cudaSuccess) return call.status;
    if (const cudaError_t status = refuse_broken(stream, call.what)) return status;
    if (event->capture) {  // the stream becomes part of the event's capture
        if (stream->capture && stream->capture != event->capture)
            return call.breaks(*stream->capture, cudaErrorStreamCaptureIsolation);
        if (event->capture->ended)
            return fail(cudaErrorCapturedEvent,
                        "cudaStreamWaitEvent: the event was recorded in a capture that has ended");
        if (!stream->capture) {
            stream->capture = event->capture;
            stream->predecessors_before_capture = std::exchange(stream->predecessors, {});
            stream->capture->streams.push_back(stream);
            ++stream->queued;
        }
        stream->predecessors.push_back(event->operation);
        return cudaSuccess;
    }
    if (stream->capture && event->recorded) return call.breaks(*stream->capture, cudaErrorStreamCaptureIsolation);
    if (!event->operation || event->operation->done) return cudaSuccess;
    wait_on_stream(call, stream, event->operation);
    return cudaSuccess;
}

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
    *least = 0;
    *greatest = -5;
    return cudaSuccess;
}

// ---- events ------------------------------------------------------------------------------------------------------

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
    const cudaError_t status = make("cudaEventCreate", event);
    if (status == cudaSuccess) (*event)->timing = !(flags & cudaEventDisableTiming);
    return status;
}

cudaError_t cudaEventCreate(cudaEvent_t* event) { return cudaEventCreateWithFlags(event, cudaEventDefault); }

cudaError_t cudaEventDestroy(cudaEvent_t event) {
    Call call("cudaEventDestroy", event);
    if (call.e.alive.erase(event)) delete event;
    return call.status;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
    stream = actual_stream(stream);
    Call call("cudaEventRecord", stream);
    if (call.status == cudaSuccess && !call.e.alive.contains(event))
        call.status = fail(cudaErrorInvalidResourceHandle, "cudaEventRecord: an event that does not exist");
    if (call.status != cudaSuccess) return call.status;
    if (const cudaError_t status = refuse_broken(stream, call.what)) return status;
    if (event->device != stream->device)
        return fail(cudaErrorInvalidResourceHandle, "{}: the event is of device {}, and the stream of {}", call.what,
                    event->device, stream->device);
    event->recorded = true;
    event->capture = stream->capture;
    event->at = Clock::now();
    event->operation = at_once(stream) ? nullptr : call.e.append(stream, call.what, nullptr);
    return cudaSuccess;
}

namespace {

// For calls that query an event: fails if the event was recorded in a capture, and invalidates the capture.
cudaError_t refuse_captured(Call& call, cudaEvent_t event) {
    if (call.status != cudaSuccess || !event->capture) return call.status;
    if (!event->capture->broken_by) event->capture->broken_by = call.what;
    return fail(cudaErrorCapturedEvent, "{}: the event was recorded in a capture", call.what);
}

}  // namespace

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
    if (const cudaError_t status = refuse_in_capture("cudaEventSynchronize")) return status;
    Call call("cudaEventSynchronize", event);
    if (const cudaError_t status = refuse_captured(call, event)) return status;
    if (event->operation && !event->operation->done) {
        ++counters.event_waits;
        const OperationPtr target = event->operation;
        run_until_done(call.lock, target);
    }
    return device_error();
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
    if (const cudaError_t status = refuse_in_capture("cudaEventQuery")) return status;
    Call call("cudaEventQuery", event);
    if (const cudaError_t status = refuse_captured(call, event)) return status;
    return event->operation && !event->operation->done ? fail(cudaErrorNotReady, "not ready") : cudaSuccess;
}

cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t from, cudaEvent_t to) {
    Call call("cudaEventElapsedTime", from);
    for (const cudaEvent_t event : {from, to}) {
        if (call.status != cudaSuccess) return call.status;
        if (!call.e.alive.contains(event) || !event->recorded || !event->timing || event->capture)
            return fail(cudaErrorInvalidResourceHandle,
                        "cudaEventElapsedTime: an event that was not recorded, or without timing");
        if (event->operation && !event->operation->done)
            return fail(cudaErrorNotReady, "cudaEventElapsedTime: not ready");
    }
    const auto at = [](cudaEvent_t event) { return event->operation ? event->operation->at : event->at; };
    *ms = std::chrono::duration<float, std::milli>(at(to) - at(from)).count();
    return cudaSuccess;
}
