#include "kernels/adamw.h"
#include "optim/methods.h"

namespace teon {

const ElementRule kAdamW{
    "adamw", {"m", "v"}, [](const ElementUpdate& u, const OptimizerOptions& o, const Stream& stream) {
        adamw_update(u.master, u.work, u.state[0], u.state[1], u.grad, u.control, u.n, u.step, o.beta1, o.beta2, o.eps,
                     stream);
    }};

}  // namespace teon
