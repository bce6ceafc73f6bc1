// What a run of a program found, in the manner of compute-sanitizer: CUDA_SANITIZE lists the alarms that count. Without
// it, as in this project's own tests, the first alarm ends its kernel and is the error of the CUDA call that waits.
//
// With it, races and reads of what nothing has written are printed once for each line, and the kernel goes on.
// An access out of bounds and a fault of synchronization end their kernel, as nothing would be left to compute. At the
// program's end comes a summary, and the exit status tells of alarms.
#pragma once

#include <cstdint>
#include <string>

namespace teon::gpusim {

enum class Check { race, init, bounds, sync };

inline constexpr int kAlarmStatus = 3;  // the exit status of a program that ended well, but with alarms

bool goes_on();  // whether CUDA_SANITIZE is set
bool is_counted(Check check);
Check check_of(const std::string& message);  // by the words of a message that ended a kernel
void report_launch(const std::string& kernel, uint64_t blocks);
void report_alarm(const std::string& message);
void report_note();

}  // namespace teon::gpusim
