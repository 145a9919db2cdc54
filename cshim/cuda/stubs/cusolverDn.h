/* Stands in for a header that not all libtorches come with: the types that those of libtorch name. */
#ifndef LINSTOCK_CUSOLVERDN_H_
#define LINSTOCK_CUSOLVERDN_H_

#include <cusolver_common.h>

typedef struct cusolverDnContext *cusolverDnHandle_t;

#endif /* LINSTOCK_CUSOLVERDN_H_ */
