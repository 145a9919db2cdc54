/* Stands in for a header of the CUDA toolkit that includes some that its wheels lack. Nothing of it is used. */
#ifndef LINSTOCK_CUDA_FP16_H_
#define LINSTOCK_CUDA_FP16_H_
#endif /* LINSTOCK_CUDA_FP16_H_ */
