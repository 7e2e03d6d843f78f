"""The loops of recall, compiled; a source's contract (`recall.sources`) is kept in here.

Shapes: B users; ``excluded`` [B, E] int32 padded with 0; ``masks`` as `features.eligibility.mask_rows`
gives them. Candidates travel as keys [B, C] int64 that hold score and item in one number and rise as
scores fall, of equal scores with the item's index; `NO_KEY` stands for none. Numpy sorts those many
times quicker than it orders floats. Scratch arrays have a place for every item; they come and go all
zero, so that a batch touches only the places it uses.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from features.compiled import BOOLS, ITEMS, compiled
from features.encoding import FIRST_KNOWN

SCORES = "Array(float32, 2, 'C', True)"
NO_KEY = np.iinfo(np.int64).max


def best_keys(keys: np.ndarray, n: int) -> np.ndarray:
    """The n best candidates of each row, best first, [B, min(n, C)]; ``keys`` [B, C] are used up."""
    if n < keys.shape[1]:
        keys.partition(max(n - 1, 0), axis=1)
        keys = np.ascontiguousarray(keys[:, :n])
    keys.sort(axis=1)
    return keys


@njit(cache=True)
def _key(bits, item):
    """Of a score's bits as int32; those of negative floats rise as the value falls, the others must be turned."""
    fall = bits & 0x7FFFFFFF if bits < 0 else ~bits
    return (np.int64(fall) << 32) | np.int64(item)


@njit(cache=True)
def _score(key):
    """Bits, as int32, of the score that a key holds."""
    fall = np.int32(key >> 32)
    return ~fall if fall < 0 else fall | np.int32(-0x80000000)


@compiled(f"int64[:, ::1]({ITEMS}, {SCORES})")
def keys_of(items, scores):
    """Keys of items [B, C] by scores [B, C]; none of padding, nor at -inf or NaN."""
    keys, bits = np.full(items.shape, NO_KEY), scores.view(np.int32)
    for row in range(len(items)):
        for place in range(items.shape[1]):
            if items[row, place] >= FIRST_KNOWN and scores[row, place] > -np.inf:
                keys[row, place] = _key(bits[row, place] if scores[row, place] != 0 else np.int32(0), items[row, place])
    return keys


@compiled("Tuple((int32[:, ::1], float32[:, ::1]))(int64[:, ::1])")
def read_keys(keys):
    """Items [B, C] int32 padded with 0 and scores [B, C] float32, -inf at padding."""
    items, bits = np.zeros(keys.shape, np.int32), np.empty(keys.shape, np.int32)
    scores = bits.view(np.float32)
    for row in range(len(keys)):
        for place in range(keys.shape[1]):
            key = keys[row, place]
            if key == NO_KEY:
                scores[row, place] = -np.inf
                continue
            items[row, place], bits[row, place] = np.int32(key & 0x7FFFFFFF), _score(key)
    return items, scores


@njit(cache=True)
def _mark(barred, items, value):
    for item in items:
        barred[item] = value


@compiled(f"int64[:, ::1]({ITEMS}, {SCORES}, {ITEMS}, {BOOLS}, boolean[::1])")
def usable_keys(items, scores, excluded, masks, barred):
    """Keys of items [B, C], or [1, C] for all rows, by scores [B, C]; none of what may not be returned.

    Entries at -inf or NaN do not count.
    """
    keys, bits = np.full(scores.shape, NO_KEY), scores.view(np.int32)
    for row in range(len(scores)):
        _mark(barred, excluded[row], True)
        candidates = items[row if len(items) > 1 else 0]
        for place in range(len(candidates)):
            item, score = candidates[place], scores[row, place]
            eligible = len(masks) == 0 or masks[row % len(masks), item]
            if item >= FIRST_KNOWN and score > -np.inf and eligible and not barred[item]:
                keys[row, place] = _key(bits[row, place] if score != 0 else np.int32(0), item)
        _mark(barred, excluded[row], False)
    return keys


@compiled(f"int64[:, ::1]({ITEMS}, {SCORES}, int64[::1], {ITEMS}, {BOOLS}, int64, boolean[::1])")
def first_keys(items, scores, lists, excluded, masks, n, barred):
    """Keys of the first n usable entries of the list that each row has: ``lists`` [B] of items [S, C], best first."""
    keys, bits = np.full((len(lists), n), NO_KEY), scores.view(np.int32)
    for row in range(len(lists)):
        _mark(barred, excluded[row], True)
        size, own = 0, lists[row]
        for place in range(items.shape[1]):
            if size == n:
                break
            item = items[own, place]
            eligible = len(masks) == 0 or masks[row % len(masks), item]
            if item >= FIRST_KNOWN and eligible and not barred[item]:
                keys[row, size] = _key(bits[own, place] if scores[own, place] != 0 else np.int32(0), item)
                size += 1
        _mark(barred, excluded[row], False)
    return keys


@njit(cache=True)
def _add_up(events, gains, neighbours, weights, sums, met):
    """Add the neighbours' weights to ``sums``; returns how many items stand in ``met``.

    An item whose sum comes to 0 on the way stands there again: it counts the first time only.
    """
    reached = 0
    for place in range(len(events)):
        event, gain = events[place], gains[place]
        if event < FIRST_KNOWN or event >= len(neighbours) or gain == 0:
            continue
        for column in range(neighbours.shape[1]):
            item = neighbours[event, column]
            if item < FIRST_KNOWN:
                continue
            if sums[item] == 0 and reached < len(met):
                met[reached] = item
                reached += 1
            sums[item] += gain * weights[event, column]
    return reached


@compiled(f"int64[:, ::1]({ITEMS}, {SCORES}, {ITEMS}, {SCORES}, boolean, {ITEMS}, {BOOLS}, boolean[::1], float64[::1])")
def reached_keys(history, gains, neighbours, weights, positive, excluded, masks, barred, sums):
    """Keys of the usable items by the sums of weights over the neighbours of each row's events, [B, I + 2].

    Args:
        history: [B, H], padded with 0; gains: [B, H], the scale of each event.
        neighbours: [I + 2, M], padded with 0; weights: [I + 2, M].
        positive: whether only sums above 0 count; those of 0 never do.
        sums: scratch.
    """
    met, total = np.empty((len(history), len(neighbours)), np.int32), np.empty(1, np.float32)
    counts = np.zeros(len(history), np.int64)
    keys = np.empty((len(history), len(neighbours)), np.int64)
    bits = total.view(np.int32)
    for row in range(len(history)):
        reached = _add_up(history[row], gains[row], neighbours, weights, sums, met[row])
        _mark(barred, excluded[row], True)
        for place in range(reached):
            item = met[row, place]
            total[0], sums[item] = sums[item], 0.0
            eligible = len(masks) == 0 or masks[row % len(masks), item]
            if total[0] == 0 or (positive and total[0] < 0) or barred[item] or not eligible:
                continue
            keys[row, counts[row]] = _key(bits[0], item)
            counts[row] += 1
        _mark(barred, excluded[row], False)
        keys[row, counts[row] :] = NO_KEY
    return keys


@compiled("int64(int64[:, ::1])")
def highest_item(keys):
    """The largest item index of keys [B, C]; 0 when there is none."""
    highest = 0
    for row in range(len(keys)):
        for key in keys[row]:
            if key != NO_KEY:
                highest = max(highest, key & 0x7FFFFFFF)
    return highest


@njit(cache=True)
def _decode(keys, items, bits):
    """Items and bits of scores of a row of keys; returns how many there are."""
    count = 0
    for key in keys:
        if key != NO_KEY:
            items[count], bits[count] = np.int32(key & 0x7FFFFFFF), _score(key)
            count += 1
    return count


@njit(cache=True)
def _spread(scores, count):
    """The least of some scores and their standard deviation, 1 when they are all the same."""
    total, lowest = 0.0, np.inf
    for place in range(count):
        total += scores[place]
        lowest = min(lowest, scores[place])
    squares = 0.0
    for place in range(count):
        squares += (scores[place] - total / count) ** 2
    return lowest, np.sqrt(squares / count) if squares > 0 else 1.0


@compiled("Tuple((int64[:, ::1], uint8[:, ::1]))(int64[:, ::1], int64[::1], float64[::1], uint8[::1], float64[::1])")
def united_keys(keys, ends, weights, bits, sums):
    """Keys of the items of several lists by their evidence, each once, [B, W]; see `recall.merge.merge`.

    Args:
        keys: [B, W], the lists one behind the other, the k-th ending before column ``ends[k]``.
        weights, bits: of each list.
        sums: scratch.
    Returns:
        keys, and the united bits of every item, [B, size of scratch].
    """
    out, sources = np.full(keys.shape, NO_KEY), np.zeros((len(keys), len(sums)), np.uint8)
    met, items = np.empty(keys.shape[1], np.int32), np.empty(keys.shape[1], np.int32)
    scores = np.empty(keys.shape[1] + 1, np.float32)
    score_bits = scores.view(np.int32)
    for row in range(len(keys)):
        distinct, start = 0, 0
        for part in range(len(ends)):
            count = _decode(keys[row, start : ends[part]], items, score_bits)
            lowest, spread = _spread(scores, count)
            scale, start = weights[part] / spread, ends[part]
            for place in range(count):
                item = items[place]
                if sources[row, item] == 0:
                    met[distinct] = item
                    distinct += 1
                sums[item] += scale * (scores[place] - lowest)
                sources[row, item] |= bits[part]
        for place in range(distinct):
            scores[0] = sums[met[place]] + 0.0
            out[row, place] = _key(score_bits[0], met[place])
            sums[met[place]] = 0.0
    return out, sources


@compiled("Tuple((int32[:, ::1], float32[:, ::1], uint8[:, ::1], int64))(int64[:, ::1], uint8[:, ::1])")
def read_united(keys, sources):
    """Items [B, C] padded with 0, evidence and sources [B, C], both 0 at padding; and the most items of a row."""
    items, bits = np.zeros(keys.shape, np.int32), np.zeros(keys.shape, np.int32)
    origin, width = np.zeros(keys.shape, np.uint8), 0
    for row in range(len(keys)):
        for place in range(keys.shape[1]):
            key = keys[row, place]
            if key != NO_KEY:
                item = np.int32(key & 0x7FFFFFFF)
                items[row, place], bits[row, place], origin[row, place] = item, _score(key), sources[row, item]
                width = max(width, place + 1)
    return items, bits.view(np.float32), origin, width
