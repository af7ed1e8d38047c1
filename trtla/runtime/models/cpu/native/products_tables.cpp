// Products of weights whose codes are looked up in a table.
#include "matmul.h"

TRTLA_PRODUCT(BlockProduct<IQ4_NL>);
TRTLA_PRODUCT(BlockProduct<IQ4_XS>);
TRTLA_PRODUCT(BlockProduct<MXFP4>);
