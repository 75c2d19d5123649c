/* What cuDNN asks the CUDA runtime and the driver while it plans for a GPU that is not there.
 *
 * Compiled twice, as libcudart.so.13 and libcuda.so.1. Nothing can be launched. */
#include <stddef.h>

int capability = 90, multiprocessors = 132; /* of the GPU; the program sets them */

static int attribute(int *value, int which) {
  switch (which) {
    case 10: *value = 32; break;          /* threads of a warp */
    case 16: *value = multiprocessors; break;
    case 75: *value = capability / 10; break;
    case 76: *value = capability % 10; break;
    case 97: *value = 232448; break;      /* most shared memory of a block */
    default: *value = 0;
  }
  return 0;
}
static int none(int *value) { return *value = 0; }
static int one(int *value) { *value = 1; return 0; }
static int version(int *value) { *value = 13000; return 0; }
static int object(void **value) { *value = (void *)16; return 0; }
static int text(const char **value) { *value = "no error"; return 0; }

int cudaGetDevice(int *device) { return none(device); }
int cudaDeviceGetAttribute(int *value, int which, int device) { return attribute(value, which); }

int cuGetErrorName(int error, const char **value) { return text(value); }
int cuGetErrorString(int error, const char **value) { return text(value); }
int cuDriverGetVersion(int *value) { return version(value); }
int cuDeviceGet(int *device, int ordinal) { return none(device); }
int cuDeviceGetCount(int *value) { return one(value); }
int cuDeviceGetAttribute(int *value, int which, int device) { return attribute(value, which); }
int cuCtxGetCurrent(void **value) { return object(value); }
int cuLibraryLoadData(void **value) { return object(value); }
int cuLibraryGetKernel(void **value) { return object(value); }
int cuKernelGetFunction(void **value) { return object(value); }
int cuModuleLoadData(void **value) { return object(value); }
int cuModuleGetFunction(void **value) { return object(value); }

/* What is loaded, and perhaps called, without results. */
#define DOES_NOTHING(name) int name(void) { return 0; }
DOES_NOTHING(cuCtxGetLimit)
DOES_NOTHING(cuCtxPopCurrent)
DOES_NOTHING(cuCtxPushCurrent)
DOES_NOTHING(cuKernelGetAttribute)
DOES_NOTHING(cuKernelSetAttribute)
DOES_NOTHING(cuLaunchCooperativeKernel)
DOES_NOTHING(cuLaunchKernel)
DOES_NOTHING(cuLaunchKernelEx)
DOES_NOTHING(cuLibraryLoadFromFile)
DOES_NOTHING(cuLibraryUnload)
DOES_NOTHING(cuLinkAddData)
DOES_NOTHING(cuLinkComplete)
DOES_NOTHING(cuLinkCreate)
DOES_NOTHING(cuLinkDestroy)
DOES_NOTHING(cuModuleUnload)
DOES_NOTHING(cuOccupancyMaxPotentialClusterSize)
DOES_NOTHING(cuStreamGetCtx)
DOES_NOTHING(cuTensorMapEncodeIm2col)
DOES_NOTHING(cuTensorMapEncodeTiled)
