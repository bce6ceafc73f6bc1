// The elementwise parts of SOAP (Vyas et al., arXiv 2409.11321, algorithm 3). optim/soap.cpp has the matrix products
// between them. Conventions: kernels/ops.h.
#pragma once

#include "base/dtype.h"
#include "kernels/step_control.h"

namespace teon {

// m (rows, cols) = beta1 m + (1-beta1) scale grad. m is dense; rows of grad begin ld elements apart.
void soap_momentum(float* m, const float* grad, int rows, int cols, int64_t ld, float scale, float beta1,
                   const Stream& stream);

// The first `rows` rows and `columns` columns of a matrix in the eigenvectors' bases, whose directions rounding
// decides: their eigenvalues are the smallest. They share second moments (each column has one for all these rows, each
// row one for all these columns), so that the update does not depend on these directions. Checkpoints have the two
// numbers as the tensors left_shared and right_shared (optim/soap.cpp).
struct SoapShared {
    int rows = 0, columns = 0;
    float* row_means = nullptr;     // (n) mean square of g(i, j) over the rows
    float* column_means = nullptr;  // (m) mean over the columns of the squares, or of row_means
    float* floor = nullptr;         // added to the means, so that rounding noise alone gives no step
    bool any() const { return rows > 0 || columns > 0; }
};
// Sets the arrays of `shared` from g (m x n) and the factor G G^T (side x side), whose trace is the sum of g's squares:
// floor = 2^-20 trace / (m n).
void soap_shared_means(const SoapShared& shared, const float* g, const float* factor, int side, int m, int n,
                       const Stream& stream);

// Adam in the eigenvectors' bases (m x n):
//   v = beta2 v + (1-beta2) (scale^2 g^2, or scale^2 mean + floor)
//   out = mo sqrt(correction2) / correction1 / (sqrt(v) + eps)
// out may alias g or the momentum mo.
struct SoapConstants {
    float scale, beta2, correction1, correction2, eps;
};
void soap_direction(float* out, float* v, const float* g, const float* mo, const SoapShared& shared, int m, int n,
                    const SoapConstants& constants, const Stream& stream);

// Updates the weights by UpdateRate with the direction u, except that decay comes after the update, as in the authors'
// program: master = (master - r lr_scale u) (1 - r weight_decay). u (rows, cols) is dense; rows of the weights begin ld
// elements apart. control->skip is not read.
void soap_apply(float* master, bf16* work, const float* u, int rows, int cols, int64_t ld, const UpdateRate& rate,
                const StepControl* control, const Stream& stream);

// out[i] = the sum over j of X(i, j) Y(i, j), both (n x n).
void soap_row_products(float* out, const float* X, const float* Y, int n, const Stream& stream);

// out(i, j) = x(order[i], j), or x(i, order[j]) if by columns; (rows x cols).
void soap_reorder(float* out, const float* x, const int* order, int rows, int cols, bool by_columns,
                  const Stream& stream);

}  // namespace teon
