// The C interface of cuBLAS, as far as mpchain calls it. Python does the work.
using Number = long long;
using Call = int (*)(int function, const Number* arguments);

static Call python;

extern "C" {
void cublasDoubleConnect(Call call) { python = call; }
int cublasSetStream_v2(void* handle, void* stream) {
  const Number arguments[] = {(Number)handle, (Number)stream};
  return python(0, arguments);
}
int cublasSetWorkspace_v2(void* handle, void* pointer, unsigned long bytes) {
  const Number arguments[] = {(Number)handle, (Number)pointer, (Number)bytes};
  return python(1, arguments);
}
int cublasGemmStridedBatchedEx(void* handle, int transa, int transb, int m, int n, int k, const void* alpha,
                               const void* A, int Atype, int lda, long long strideA, const void* B, int Btype,
                               int ldb, long long strideB, const void* beta, void* C, int Ctype, int ldc,
                               long long strideC, int batches, int compute, int algorithm) {
  const Number arguments[] = {(Number)handle, transa, transb, m, n, k, (Number)alpha,
                              (Number)A, Atype, lda, strideA, (Number)B, Btype, ldb, strideB,
                              (Number)beta, (Number)C, Ctype, ldc, strideC, batches, compute, algorithm};
  return python(2, arguments);
}
}
