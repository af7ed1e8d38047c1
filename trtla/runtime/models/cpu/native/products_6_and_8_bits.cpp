// Products of weights of 6 and 8 bits.
#include "matmul.h"

TRTLA_PRODUCT(BlockProduct<Q6_K>);
TRTLA_PRODUCT(BlockProduct<Q8_0>);
