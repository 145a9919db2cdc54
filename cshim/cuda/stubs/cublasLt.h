/* Stands in for a header that not all libtorches come with: the types that those of libtorch name. */
#ifndef LINSTOCK_CUBLASLT_H_
#define LINSTOCK_CUBLASLT_H_

typedef struct cublasLtContext *cublasLtHandle_t;

#endif /* LINSTOCK_CUBLASLT_H_ */
