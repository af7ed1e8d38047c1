"""Argmax and draws of rows of logits, as Triton kernels with the results of `draw`.

`choose_rows` reads each row once, in chunks; `filter_rows` follows for rows with filters, without
sorting them. The token that wins over the whole row is drawn unless a filter excludes it: then only
the tokens before it in the order of logits, equal ones by id, are left to win. Sums are in an order
that depends on the vocabulary alone, never on the other rows.
"""

# Triton has no types, and is not installed everywhere; its constants are capitals.
# mypy: disable-error-code="import-not-found,import-untyped,untyped-decorator,misc,no-any-return"
# ruff: noqa: N803, SIM102

from __future__ import annotations

import triton
import triton.language as tl

from trtla.runtime.request import NO_TOKEN
from trtla.runtime.sampling.noise import FIRST, GOLDEN, ODD, SECOND

FIELDS = 4
"""64-bit numbers of a row's job: noise, top_k, and the bits of temperature and top_p."""
PARTS = 4
"""float64 of a chunk: largest logit, its token, the token that is drawn, mass.

Behind a row's chunks: its largest logit, the least of the chunks' largest, nothing, its mass."""

_FIELDS, _PARTS = tl.constexpr(FIELDS), tl.constexpr(PARTS)
_GOLDEN, _ODD = tl.constexpr(GOLDEN), tl.constexpr(ODD)
_FIRST, _SECOND = tl.constexpr(FIRST), tl.constexpr(SECOND)
_NO_TOKEN = tl.constexpr(NO_TOKEN)
_FIELD_BITS = tl.constexpr(21)  # of three counts in one integer; no vocabulary is larger
_FIELD = tl.constexpr((1 << 21) - 1)
_SLACK = tl.constexpr(1e-3)  # far above the errors of float32 scores near the best one
_COLD = tl.constexpr(1e-30)  # float32 cannot divide by less
_INFINITY = tl.constexpr(float("inf"))


@triton.jit
def _bits(noise: tl.tensor, tokens: tl.tensor) -> tl.tensor:
    """52 bits of noise of tokens, uint64, from a position's 53."""
    mixed = noise.to(tl.uint64) * _ODD + tokens.to(tl.uint64) * _GOLDEN
    mixed = (mixed ^ (mixed >> 30)) * _FIRST
    mixed = (mixed ^ (mixed >> 27)) * _SECOND
    return (mixed ^ (mixed >> 31)) >> 12


@triton.jit
def _gumbel(noise: tl.tensor, tokens: tl.tensor) -> tl.tensor:
    """Standard Gumbel noise of tokens, float64."""
    bits = _bits(noise, tokens).to(tl.float64)
    return -tl.log(-tl.log((bits + 0.5) * 2.220446049250313e-16))


@triton.jit
def _rough_gumbel(noise: tl.tensor, tokens: tl.tensor) -> tl.tensor:
    """The same within 1e-4, in float32."""
    bits = _bits(noise, tokens)
    near = (((1 << 52) - bits).to(tl.float32) - 0.5) * 2.220446049250313e-16  # 1 - u
    series = near * (1.0 + near * (0.5 + near * (1.0 / 3.0)))
    small = -tl.log((bits.to(tl.float32) + 0.5) * 2.220446049250313e-16)
    return -tl.log(tl.where(near < 0.03125, series, small))


@triton.jit
def _first_of_largest(scores: tl.tensor, tokens: tl.tensor, size: tl.tensor) -> tl.tensor:
    """The smallest token with the largest score; some token where a score is NaN."""
    found = tl.min(tl.where(scores == tl.max(scores, 0), tokens, size), 0)
    return tl.minimum(found, size - 1)


@triton.jit
def _read(row: tl.tensor, tokens: tl.tensor, size: tl.tensor) -> tl.tensor:
    """Logits as float32, exactly; -inf behind the last."""
    return tl.load(row + tokens, mask=tokens < size, other=-_INFINITY).to(tl.float32)


@triton.jit
def _counted(
    row: tl.tensor, size: tl.tensor, edge: tl.tensor, end: tl.tensor,
    top: tl.tensor, heat: tl.tensor, weighed: tl.tensor, BLOCK: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """(logits above `edge`, mass of the tokens before `end`, whose logit that is, if `weighed`).

    Larger logits come before, and equal ones of smaller tokens.
    """
    counts, masses = tl.zeros([BLOCK], tl.int32), tl.zeros([BLOCK], tl.float64)
    for at in range(0, size, BLOCK):
        tokens = at + tl.arange(0, BLOCK)
        x = _read(row, tokens, size)
        larger = x > edge
        counts += larger.to(tl.int32)
        inside = larger | ((x == edge) & (tokens < end))
        if weighed & (tl.max(inside.to(tl.int32), 0) > 0):  # few blocks have any
            masses += tl.where(inside, tl.exp((x.to(tl.float64) - top) / heat), 0.0)
    return tl.sum(counts, 0), tl.sum(masses, 0)


@triton.jit
def _winner(
    row: tl.tensor, size: tl.tensor, edge: tl.tensor, end: tl.tensor,
    top: tl.tensor, heat: tl.tensor, noise: tl.tensor, BLOCK: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """The token with the largest sum of log weight and noise among those before `end`."""
    best = tl.full([BLOCK], -_INFINITY, tl.float64)
    found = tl.arange(0, BLOCK)
    for at in range(0, size, BLOCK):
        tokens = at + tl.arange(0, BLOCK)
        x = _read(row, tokens, size)
        inside = (x > edge) | ((x == edge) & (tokens < end))
        if tl.max(inside.to(tl.int32), 0) > 0:
            scores = (x.to(tl.float64) - top) / heat + _gumbel(noise, tokens)
            wins = inside & (scores > best)
            best, found = tl.where(wins, scores, best), tl.where(wins, tokens, found)
    return _first_of_largest(best, found, size)


@triton.jit
def _ordered(bits: tl.tensor) -> tl.tensor:
    """Bits of floats to integers in the same order, and back."""
    return tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)


@triton.jit
def _least_of_top_k(
    row: tl.tensor, size: tl.tensor, top_k: tl.tensor, low: tl.tensor, top: tl.tensor,
    BLOCK: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """A number that the top_k largest logits, those equal to the last included, alone reach.

    Between `low`, which at least top_k reach, and `top`, the largest: quarters of what is left.
    """
    low = _ordered(low.to(tl.int32, bitcast=True)).to(tl.int64)
    high = _ordered(top.to(tl.int32, bitcast=True)).to(tl.int64) + 1
    while high - low > 1:  # at least top_k logits reach `low`, fewer `high`
        stride = (high - low + 3) // 4
        second = tl.minimum(low + stride, high - 1)
        third = tl.minimum(second + stride, high - 1)
        fourth = tl.minimum(third + stride, high - 1)
        edge_2, edge_3, edge_4 = _number(second), _number(third), _number(fourth)
        counts = tl.zeros([BLOCK], tl.int64)
        for at in range(0, size, BLOCK):
            tokens = at + tl.arange(0, BLOCK)
            x = _read(row, tokens, size)
            reach = (x >= edge_2).to(tl.int64)
            reach += (x >= edge_3).to(tl.int64) << _FIELD_BITS
            reach += (x >= edge_4).to(tl.int64) << (2 * _FIELD_BITS)
            counts += reach
        packed = tl.sum(counts, 0)
        in_second, in_third = packed & _FIELD, (packed >> _FIELD_BITS) & _FIELD
        in_fourth = packed >> (2 * _FIELD_BITS)
        high = tl.where(in_fourth < top_k, fourth, high)
        high = tl.where(in_third < top_k, third, high)
        high = tl.where(in_second < top_k, second, high)
        exact = (in_second == top_k) | (in_third == top_k) | (in_fourth == top_k)
        low = tl.where(in_second >= top_k, second, low)
        low = tl.where(in_third >= top_k, third, low)
        low = tl.where(in_fourth >= top_k, fourth, low)
        high = tl.where(exact, low + 1, high)
    return _number(low)


@triton.jit
def _number(ordered: tl.tensor) -> tl.tensor:
    """The float of an integer in the order of floats."""
    return _ordered(ordered.to(tl.int32)).to(tl.float32, bitcast=True)


@triton.jit
def filter_rows(
    logits: tl.tensor,
    jobs: tl.tensor,
    parts: tl.tensor,
    out: tl.tensor,
    stride: tl.tensor,
    size: tl.tensor,
    chunks: tl.tensor,
    BLOCK: tl.constexpr,
) -> None:
    """Grid (rows,), after `choose_rows`: replaces draws that filters exclude."""
    job = tl.program_id(0)
    row = logits + job.to(tl.int64) * stride
    noise, top_k, heat, top_p = _job(jobs, job)
    token = tl.load(out + 2 * job + 1)
    weighed = top_p < 1.0
    if (token >= 0) & (weighed | (top_k < size)):
        parts += (job * (chunks + 1) + chunks) * _PARTS
        top, total = tl.load(parts), tl.load(parts + 3)
        if weighed & (top_k < size):  # the nucleus is one of the top_k's mass
            low = tl.where(top_k <= chunks, tl.load(parts + 1), -_INFINITY).to(tl.float32)
            least = _least_of_top_k(row, size, top_k, low, top.to(tl.float32), BLOCK)
            _, total = _counted(row, size, least, size, top, heat, weighed, BLOCK)
        kept = token < 0  # not yet, and the argmax always is
        while not kept:
            edge = tl.load(row + token).to(tl.float32)
            larger, mass = _counted(row, size, edge, token, top, heat, weighed, BLOCK)
            counted = larger < top_k
            kept = counted & ((mass / total < top_p) | (top_p >= 1.0))
            if not kept:
                end = tl.where(counted, token, 0)  # top-k keeps or excludes equal logits together
                token = _winner(row, size, edge, end, top, heat, noise, BLOCK)
        tl.store(out + 2 * job + 1, token)


@triton.jit
def _job(jobs: tl.tensor, job: tl.tensor) -> tl.tensor:
    """(noise, top_k, temperature, top_p) of a row."""
    jobs += job * _FIELDS
    heat = tl.load(jobs + 2).to(tl.float64, bitcast=True)
    return tl.load(jobs), tl.load(jobs + 1), heat, tl.load(jobs + 3).to(tl.float64, bitcast=True)


@triton.jit
def _drawn(
    x: tl.tensor, tokens: tl.tensor, size: tl.tensor, base: tl.tensor, noise: tl.tensor,
    heat: tl.tensor,
) -> tl.tensor:  # fmt: skip
    """The draw from a chunk: float64 only where float32 cannot tell which token is best."""
    inverse = tl.minimum(1.0 / heat, 3.4028234663852886e38).to(tl.float32)
    gaps = tl.where(x > -_INFINITY, (x - base) * inverse, -_INFINITY)  # no -inf * 0
    rough = gaps + _rough_gumbel(noise, tokens)
    best = rough >= tl.max(rough, 0) - _SLACK
    found = tl.min(tl.where(best, tokens, size), 0)
    if (tl.sum(best.to(tl.int32), 0) != 1) | (heat < _COLD):
        logs = (x.to(tl.float64) - base.to(tl.float64)) / heat
        found = _first_of_largest(logs + _gumbel(noise, tokens), tokens, size)
    return tl.minimum(found, size - 1)


@triton.jit
def _scan(
    row: tl.tensor, size: tl.tensor, part: tl.tensor, noise: tl.tensor, heat: tl.tensor,
    weighed: tl.tensor, CHUNK: tl.constexpr, DRAWS: tl.constexpr,
) -> None:  # fmt: skip
    """Write what the last program needs of this program's chunk."""
    tokens = tl.program_id(1) * CHUNK + tl.arange(0, CHUNK)
    x = _read(row, tokens, size)
    sound = x < _INFINITY  # which NaN is not
    broken = tl.max(tl.where(sound, 0, 1), 0) > 0
    x = tl.where(sound, x, -_INFINITY)
    top = tl.max(x, 0)
    tl.store(part, tl.where(broken, _INFINITY, top).to(tl.float64))
    tl.store(part + 1, _first_of_largest(x, tokens, size).to(tl.float64))
    if DRAWS:  # known when it is compiled
        if heat > 0.0:
            base = tl.where(top == -_INFINITY, 0.0, top)
            tl.store(part + 2, _drawn(x, tokens, size, base, noise, heat).to(tl.float64))
            if weighed:
                logs = (x.to(tl.float64) - base.to(tl.float64)) / heat
                tl.store(part + 3, tl.sum(tl.exp(logs), 0))


@triton.jit
def choose_rows(
    logits: tl.tensor,
    jobs: tl.tensor,
    parts: tl.tensor,
    arrived: tl.tensor,
    out: tl.tensor,
    stride: tl.tensor,
    size: tl.tensor,
    CHUNK: tl.constexpr,
    CHUNKS: tl.constexpr,
    DRAWS: tl.constexpr,
) -> None:
    """Grid (rows, chunks of a row): out is [rows, 2], argmax and draw from the whole row.

    Temperature 0 asks for no draw. `arrived` is 0 before and after: the last program to end its
    chunk of a row does the rest.
    """
    job, chunks = tl.program_id(0), tl.num_programs(1)
    row = logits + job.to(tl.int64) * stride
    noise, _, heat, top_p = _job(jobs, job)
    parts += job * (chunks + 1) * _PARTS
    weighed = top_p < 1.0
    _scan(row, size, parts + tl.program_id(1) * _PARTS, noise, heat, weighed, CHUNK, DRAWS)
    tl.debug_barrier()
    if tl.atomic_add(arrived + job, 1) == chunks - 1:
        tl.store(arrived + job, 0)
        tl.debug_barrier()
        places = tl.arange(0, CHUNKS)
        inside, own = places < chunks, parts + places * _PARTS
        tops = tl.load(own, mask=inside, other=-_INFINITY, cache_modifier=".cg")
        top = tl.max(tops, 0)
        firsts = tl.load(own + 1, mask=inside, other=0.0, cache_modifier=".cg").to(tl.int32)
        found = _first_of_largest(tops, firsts, size)
        sound = (top < _INFINITY) & (top > -_INFINITY)
        tl.store(out + 2 * job, tl.where(sound, found, _NO_TOKEN))
        if DRAWS:
            token = _NO_TOKEN
            if sound & (heat > 0.0):
                drawn = tl.load(own + 2, mask=inside, other=0.0, cache_modifier=".cg").to(tl.int32)
                logs = (tl.load(row + drawn).to(tl.float64) - top) / heat
                scores = tl.where(inside, logs + _gumbel(noise, drawn), -_INFINITY)
                token = _first_of_largest(scores, drawn, size)
                masses = tl.load(own + 3, mask=inside, other=0.0, cache_modifier=".cg")
                masses = tl.where(weighed, masses, 1.0)  # not written, else
                parts += chunks * _PARTS
                tl.store(parts, top)
                tl.store(parts + 1, tl.min(tl.where(inside, tops, top), 0))
                tl.store(parts + 3, tl.sum(masses * tl.exp((tops - top) / heat), 0))
            tl.store(out + 2 * job + 1, token)
