/* Stands in for a header that not all libtorches come with: the types that those of libtorch name. */
#ifndef LINSTOCK_CUSPARSE_H_
#define LINSTOCK_CUSPARSE_H_

typedef struct cusparseContext *cusparseHandle_t;
typedef enum { CUSPARSE_STATUS_SUCCESS = 0 } cusparseStatus_t;

#endif /* LINSTOCK_CUSPARSE_H_ */
