// A plan as text: the start-up tables of model, data and batch, memory, optimizer and placement.
#pragma once

#include <string>

#include "plan/run_plan.h"

namespace teon {

std::string plan_report(const RunPlan& plan);

}  // namespace teon
