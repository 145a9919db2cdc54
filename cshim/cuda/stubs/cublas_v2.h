/* Stands in for a header that not all libtorches come with: the types that those of libtorch name. */
#ifndef LINSTOCK_CUBLAS_V2_H_
#define LINSTOCK_CUBLAS_V2_H_

typedef struct cublasContext *cublasHandle_t;
typedef enum { CUBLAS_STATUS_SUCCESS = 0 } cublasStatus_t;

#endif /* LINSTOCK_CUBLAS_V2_H_ */
