// The elementwise parts of SOAP (Vyas et al., arXiv 2409.11321, algorithm 3). optim/soap.cpp has the matrix products
// between them. Conventions: kernels/ops.h.
#pragma once

#include "base/dtype.h"
#include "runtime/device.h"

namespace teon {

// m (rows, cols) = beta1 m + (1-beta1) scale grad. m is dense; rows of grad begin ld elements apart.
void soap_momentum(float* m, const float* grad, int rows, int cols, int64_t ld, float scale, float beta1,
                   const Stream& stream);

// Adam in the eigenvectors' bases, n elements:
//   v = beta2 v + (1-beta2) (scale g)^2; out = (m / correction1) / (sqrt(v / correction2) + eps)
// out may alias g or m.
void soap_direction(float* out, float* v, const float* g, const float* m, int64_t n, float scale, float beta2,
                    float correction1, float correction2, float eps, const Stream& stream);

// master = master keep - step u; work = master rounded, unless work is nullptr. u (rows, cols) is dense; rows of the
// weights begin ld elements apart. cautious: keep applies only if step u * master >= 0, else the factor is 1.
void soap_apply(float* master, bf16* work, const float* u, int rows, int cols, int64_t ld, float step, float keep,
                bool cautious, const Stream& stream);

}  // namespace teon
