package testdevice

// Workspace is the size of cuBLAS's workspaces in bytes in the kit (tests/gpu), which libtorch keeps for each thread and
// stream that has multiplied. Tests that compare the bytes of the device do so modulo it.
const Workspace = 1000 << 10
