/* Stands in for the file of this name in the wheel nvidia-cuda-crt, like host_defines.h: it only refuses compilers
 * that nvcc does not know. */
