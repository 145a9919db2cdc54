package cshim

/*
#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "cuda/linstock_cuda.h"
#include "table_gen.h"

// Returns the formatted text, which the caller frees.
__attribute__((format(printf, 1, 2))) static char *format(const char *pattern, ...) {
	char text[1024];
	va_list arguments;
	va_start(arguments, pattern);
	vsnprintf(text, sizeof text, pattern, arguments);
	va_end(arguments);
	return strdup(text);
}

// Returns the number of the driver's devices; 0: none, and in why the reason, a text that the caller frees. libtorch
// must not be called: without its CUDA part, which is not loaded yet, it would remember that there are none.
static int driver_devices(char **why) {
	const int no_device = 100; // CUDA_ERROR_NO_DEVICE
	void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
	if (driver == NULL) {
		*why = strdup("this machine has no CUDA driver (libcuda.so.1)");
		return 0;
	}
	int (*init)(unsigned) = (int (*)(unsigned))dlsym(driver, "cuInit");
	int (*count)(int *) = (int (*)(int *))dlsym(driver, "cuDeviceGetCount");
	int (*text_of)(int, const char **) = (int (*)(int, const char **))dlsym(driver, "cuGetErrorString");
	if (init == NULL || count == NULL) {
		*why = strdup("libcuda.so.1 is not a CUDA driver");
		return 0;
	}
	int n = 0, e = init(0);
	const char *call = "cuInit", *visible = getenv("CUDA_VISIBLE_DEVICES"), *text = NULL;
	if (e == 0) {
		call = "cuDeviceGetCount";
		e = count(&n);
	}
	if (e == 0 && n > 0) return n;
	if (text_of == NULL || text_of(e, &text) != 0 || text == NULL) text = "unknown error";
	if (e != 0 && e != no_device)
		*why = format("the CUDA driver does not start: %s returns error %d (%s)", call, e, text);
	else if (visible != NULL)
		*why = format("the CUDA driver has no device with CUDA_VISIBLE_DEVICES=%s", visible);
	else
		*why = strdup("the CUDA driver has no device");
	return 0;
}

// Opens the CUDA library in directory if there is one and a device for it. Returns the number of devices, and in why
// the reason that none can be used, a text that the caller frees.
static int open_cuda(const char *directory, char **why) {
	*why = NULL;
	const char *off = getenv("LINSTOCK_CUDA");
	char path[4096];
	snprintf(path, sizeof path, "%s/liblinstock_cuda.so", directory);
	if (access(path, R_OK) != 0) return 0;
	if (off != NULL && strcmp(off, "0") == 0) {
		*why = strdup("LINSTOCK_CUDA=0");
		return 0;
	}
	int n = driver_devices(why);
	if (n == 0) return 0;
	void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	if (library == NULL) {
		*why = strdup(dlerror());
		return 0;
	}
	const char *(*enter)(uint32_t) = (const char *(*)(uint32_t))dlsym(library, "ls_cuda_open");
	const char *wrong = enter == NULL ? "liblinstock_cuda.so has no ls_cuda_open" : enter(LS_CUDA_ABI);
	if (wrong != NULL) {
		*why = strdup(wrong);
		return 0;
	}
	return n;
}
*/
import "C"

import (
	"path/filepath"
	"unsafe"
)

var cudaDevices int
var cudaWhyNot string

// openCUDA opens the CUDA library beside the shim. It must be called before the first operator, since libtorch
// looks for its CUDA part only once. A machine without a GPU, or a library that does not open, is not an error
// here.
func openCUDA(shim string) {
	directory := C.CString(filepath.Dir(shim))
	defer C.free(unsafe.Pointer(directory))
	var why *C.char
	cudaDevices = int(C.open_cuda(directory, &why))
	if why != nil {
		cudaWhyNot = C.GoString(why)
		C.free(unsafe.Pointer(why))
	}
}

// CUDA returns the number of CUDA devices that the driver reports. If the CUDA library is installed and no
// device can be used, why is the reason; it is empty if the shim was set up without CUDA.
func CUDA() (devices int, why string) { return cudaDevices, cudaWhyNot }

// NoCUDA returns the reason that no CUDA device can be used, also if the shim was set up without CUDA.
func NoCUDA() string {
	if cudaWhyNot == "" {
		return `Linstock and its libtorch are set up for the CPU; "linstock setup --cuda" sets them up for a GPU`
	}
	return cudaWhyNot
}

// CUDASnapshot returns the caching allocator's segments and settings as the pickle that PyTorch's memory viewer
// reads, without stacks and events. It is empty if no device has been used.
func CUDASnapshot() ([]byte, error) {
	s, err := text(C.lsc_cuda_snapshot(nil, 0), nil)
	return []byte(s), err
}

// AllocatorSettings is ls_allocator_settings.
type AllocatorSettings struct {
	MaxSplitSize               int64
	GarbageCollectionThreshold float64
	ExpandableSegments         int32
	_                          int32
	MemoryFraction             float64
}

var _ [unsafe.Sizeof(C.ls_allocator_settings{})]byte = [unsafe.Sizeof(AllocatorSettings{})]byte{}

// CUDAAllocatorSettings returns the options of PyTorch's caching allocator and the text that set them.
func CUDAAllocatorSettings() (s AllocatorSettings, set string, err error) {
	set, err = text(C.lsc_cuda_allocator_settings((*C.ls_allocator_settings)(unsafe.Pointer(&s)), nil, 0), nil)
	return s, set, err
}

// CUDASetAllocatorSettings sets the options. Those that the text does not name are reset to their defaults,
// except expandable_segments.
func CUDASetAllocatorSettings(settings string) error {
	s := C.CString(settings)
	defer C.free(unsafe.Pointer(s))
	return takeError(C.lsc_cuda_set_allocator_settings(s))
}

// Capturing reports whether the calling thread is capturing a CUDA graph.
func Capturing() bool { return cudaDevices != 0 && C.lsc_cuda_capturing() != 0 }
