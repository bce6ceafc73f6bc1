#include "kernels/lion.h"
#include "optim/methods.h"

namespace teon {

const ElementRule kLion{"lion", {"m"}, [](const ElementUpdate& u, const OptimizerOptions& o, const Stream& stream) {
                            lion_update(u.master, u.work, u.state[0], u.grad, u.control, u.n, u.step, o.beta1, o.beta2,
                                        stream);
                        }};

}  // namespace teon
