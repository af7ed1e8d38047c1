// Products of weights of 4 bits.
#include "matmul.h"

TRTLA_PRODUCT(BlockProduct<Q4_0>);
TRTLA_PRODUCT(BlockProduct<Q4_1>);
TRTLA_PRODUCT(BlockProduct<Q4_K>);
