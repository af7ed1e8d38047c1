// Products of weights of 5 bits.
#include "matmul.h"

TRTLA_PRODUCT(BlockProduct<Q5_0>);
TRTLA_PRODUCT(BlockProduct<Q5_1>);
TRTLA_PRODUCT(BlockProduct<Q5_K>);
