/* Stands in for a header that not all libtorches come with: the types that those of libtorch name. */
#ifndef LINSTOCK_CUSOLVER_COMMON_H_
#define LINSTOCK_CUSOLVER_COMMON_H_

typedef enum { CUSOLVER_STATUS_SUCCESS = 0 } cusolverStatus_t;

#endif /* LINSTOCK_CUSOLVER_COMMON_H_ */
