// Package cshim is the only package of Linstock that imports "C". It loads the shim, a C++ library with a flat
// C API over libtorch (see include/linstock.h), and wraps each of its functions in a Go function of plain
// values. It does not manage lifetimes: a Handle is an integer that its owner must free once.
//
// The shim is loaded at first use, not linked, so a program builds, vets and starts on a machine without
// libtorch. Until Load has succeeded no other function of this package may be called.
//
// A function that can fail returns its error as an ErrorRef, which Take converts to a Go error and frees.
// Nothing here panics. Only functions marked "calls back" let C++ call into Go.
package cshim

/*
#cgo CFLAGS: -O2 -Wall
#cgo linux LDFLAGS: -ldl
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "table_gen.h"

const char *ls_table_load(void *library);
extern const ls_callbacks ls_go_callbacks;

static int has_openmp(void) { return dlsym(RTLD_DEFAULT, "omp_get_max_threads") != NULL; }

// Opens LLVM's OpenMP runtime, which has libgomp's functions too, before libtorch and for all libraries: those of
// libtorch then call it instead of their libgomp (docs/decisions/0023-openmp.md). A program that is linked with a
// runtime of its own keeps that one. Returns an error, or NULL.
//
// The runtime reads its environment at the first call. By default an idle team spins for 200 ms, on cores that the
// garbage collector and other goroutines need; with this setting until the next operator is likely to have begun.
//
// To detect a second copy of itself, the runtime makes a file of shared memory, and removes it when the process ends
// through exit, which a Go program does not. The copies would not disturb each other here.
static const char *open_openmp(const char *path) {
	if (has_openmp())
		return NULL;
	void *l = dlopen(path, RTLD_NOW | RTLD_GLOBAL);
	if (!l)
		return dlerror();
	int (*first)(void) = (int (*)(void))dlsym(l, "omp_get_max_threads");
	if (!first)
		return dlerror();
	int ours = !getenv("KMP_BLOCKTIME") && !getenv("KMP_LIBRARY") && !getenv("OMP_WAIT_POLICY") &&
		setenv("KMP_BLOCKTIME", "1", 0) == 0;
	first();
	const char *dirs[] = {"/dev/shm", "/tmp"};
	for (int i = 0; i < 2; i++) {
		char name[80];
		snprintf(name, sizeof name, "%s/__KMP_REGISTERED_LIB_%d_%d", dirs[i], (int)getpid(), (int)getuid());
		unlink(name);
	}
	if (ours)
		unsetenv("KMP_BLOCKTIME");
	return NULL;
}

// Returns the path of the OpenMP runtime that libtorch calls, or NULL, and whether it is LLVM's.
static const char *openmp_of(void *shim, int *llvm) {
	void *f = dlsym(RTLD_DEFAULT, "omp_get_max_threads");
	if (!f)
		f = dlsym(shim, "omp_get_max_threads");
	Dl_info of, other;
	if (!f || !dladdr(f, &of))
		return NULL;
	void *fork = dlsym(RTLD_DEFAULT, "__kmpc_fork_call");
	if (!fork)
		fork = dlsym(shim, "__kmpc_fork_call");
	*llvm = fork && dladdr(fork, &other) && other.dli_fbase == of.dli_fbase;
	return of.dli_fname;
}

// A single C function, because dlerror is per thread. libgomp, where it is used, reads its environment when it is
// loaded; with this setting an idle team spins for as long as one of LLVM's runtime.
//
// ideep, libtorch's layer above oneDNN, caches 1,024 descriptions of convolutions for each thread and each kind, 24 MB
// if shapes vary, until the thread ends. 64 are enough for a model of constant shapes; oneDNN caches more, once for the
// process (ONEDNN_PRIMITIVE_CACHE_CAPACITY), but not those of transposed convolutions, which take 0.3 ms each. ideep
// reads the setting at a thread's first convolution (docs/decisions/0002-block-cache.md).
static void *open_library(const char *path, const char *openmp, const char **why) {
	if (openmp && (*why = open_openmp(openmp)))
		return NULL;
	int ours = !getenv("OMP_WAIT_POLICY") && !getenv("GOMP_SPINCOUNT") && setenv("GOMP_SPINCOUNT", "5000", 0) == 0;
	setenv("LRU_CACHE_CAPACITY", "64", 0);
	void *l = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	*why = l ? NULL : dlerror();
	if (ours)
		unsetenv("GOMP_SPINCOUNT");
	return l;
}
*/
import "C"

import (
	"embed"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/linstock-ml/linstock/internal/intact"
	"github.com/linstock-ml/linstock/internal/locate"
)

// Sources is the shim's CMake project: what cmd/linstock builds.
//
//go:embed CMakeLists.txt include/*.h include/linstock/*.h src/*.h src/*.cpp cuda/*.h cuda/*.cpp cuda/*.map cuda/include/crt/*.h cuda/stubs/*.h dist/*.h dist/*.cpp dist/include/gloo/*.h dist/include/gloo/*/*.h
var Sources embed.FS

// SourceHash identifies the shim's sources. A shim built from other sources is not loaded.
func SourceHash() (string, error) { return locate.SourceHash(Sources) }

// library describes a loaded shim.
type library struct {
	path   string
	openMP OpenMP
}

// loaded is the loaded shim; nil before Load has succeeded.
var loaded atomic.Pointer[library]

// Path returns the path of the loaded shim; empty before Load has succeeded.
func Path() string {
	if l := loaded.Load(); l != nil {
		return l.path
	}
	return ""
}

// OpenMP is the runtime that runs an operator's threads.
type OpenMP struct {
	Path string // of its library; empty if libtorch uses none
	LLVM bool   // whether it is LLVM's (or Intel's, which has the same source) and not, for example, libgomp
}

// String returns which runtime it is, and what that means for goroutines that compute on several OS threads
// (docs/decisions/0023-openmp.md).
func (o OpenMP) String() string {
	switch {
	case o.LLVM:
		return "LLVM's; operators take the same time on every OS thread"
	case o.Path == "":
		return "none"
	}
	return o.Path + "; small operators become slower once several OS threads have computed"
}

// OpenMPInUse returns the runtime that libtorch uses; the zero value before Load has succeeded.
func OpenMPInUse() OpenMP {
	if l := loaded.Load(); l != nil {
		return l.openMP
	}
	return OpenMP{}
}

// Load loads the shim and libtorch. It may be called any number of times, concurrently; after the first success
// it costs one atomic read. A failure is not remembered, since its cause can be removed while the program runs.
func Load() error {
	if loaded.Load() != nil {
		return nil
	}
	return load()
}

var loadMutex sync.Mutex

var onLoad func()

// atLoad runs once libtorch is loaded. It is nil without the race detector.
var atLoad func()

// OnLoad sets the function that runs once libtorch is loaded, before the first operator. Package vram sets it.
func OnLoad(f func()) { onLoad = f }

func load() error {
	loadMutex.Lock()
	defer loadMutex.Unlock()
	if loaded.Load() != nil {
		return nil
	}
	hash, err := SourceHash()
	if err != nil {
		return err
	}
	for _, path := range locate.ShimCandidates(hash) {
		if _, err := os.Stat(path); err != nil {
			continue
		}
		// Before the hash, whose buffer may be what Go's runtime has no space for.
		if err := addressSpace(path); err != nil {
			return fmt.Errorf("linstock: %w", err)
		}
		// A library that is damaged, or cannot be opened, is an error and is not skipped: the next one may be of another
		// version.
		if err := intact.Shim(path); err != nil {
			return fmt.Errorf("linstock: %w", &locate.Fault{Err: err, Remedy: locate.Remedy(path, intact.DamagedFile(err, path))})
		}
		var manifest intact.Manifest
		if err := intact.Read(filepath.Dir(path), &manifest); err == nil && manifest.Sources != "" && manifest.Sources != hash {
			err := fmt.Errorf("%s was built from other sources than this program", path)
			return fmt.Errorf("linstock: %w", &locate.Fault{Err: err, Remedy: locate.Remedy(path, path)})
		}
		openMP, err := open(path)
		if err != nil {
			fault := &locate.Fault{Err: fmt.Errorf("%s: %w", path, err), Remedy: locate.OpenRemedy(path, err.Error())}
			return fmt.Errorf("linstock: %w", fault)
		}
		loaded.Store(&library{path, openMP})
		if atLoad != nil {
			atLoad()
		}
		if onLoad != nil {
			onLoad()
		}
		return nil
	}
	return locate.Missing(hash)
}

func open(path string) (openMP OpenMP, err error) {
	name := C.CString(path)
	defer C.free(unsafe.Pointer(name))
	var runtime *C.char
	if lib := locate.OpenMP(path); lib != "" {
		runtime = C.CString(lib)
		defer C.free(unsafe.Pointer(runtime))
		if C.has_openmp() == 0 { // otherwise that runtime has read its environment
			dropOpenMPSettings()
		}
	}
	var why *C.char
	lib := C.open_library(name, runtime, &why)
	if lib == nil {
		return openMP, errors.New(C.GoString(why))
	}
	if missing := C.ls_table_load(lib); missing != nil {
		return openMP, fmt.Errorf("it is not this program's shim, or was built from other sources: it has no function %s", C.GoString(missing))
	}
	if got := uint32(C.lsc_abi()); got != C.LS_ABI {
		return openMP, fmt.Errorf("it was built from other sources: their headers are %#x, this program's %#x", got, uint32(C.LS_ABI))
	}
	built, have := VersionBuilt(), VersionLoaded()
	if built[0] != have[0] || built[1] != have[1] {
		return openMP, fmt.Errorf("the shim was built for libtorch %d.%d but loaded %d.%d", built[0], built[1], have[0], have[1])
	}
	openCUDA(path)
	if err := takeError(C.lsc_init()); err != nil {
		return openMP, err
	}
	C.lsc_memory_cache_objects(1) // docs/decisions/0047-small-objects.md
	C.lsc_callbacks_set(&C.ls_go_callbacks)
	readBoard()
	var llvm C.int
	openMP.Path = C.GoString(C.openmp_of(lib, &llvm))
	openMP.LLVM = llvm != 0
	return openMP, nil
}

func version(v C.uint64_t) [3]int {
	return [3]int{int(v >> 56), int(v >> 48 & 0xff), int(v >> 40 & 0xff)}
}

// VersionBuilt returns the libtorch version that the shim was compiled with.
func VersionBuilt() [3]int { return version(C.lsc_torch_version_built()) }

// VersionLoaded returns the version of the loaded libtorch.
func VersionLoaded() [3]int { return version(C.lsc_torch_version_loaded()) }
