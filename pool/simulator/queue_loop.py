"""The loop of `load_curves`, compiled."""

from __future__ import annotations

import numpy as np

from features.compiled import compiled

FLOATS = "Array(float64, 1, 'C', True)"


@compiled(f"Tuple((float64[::1], float64, int64))({FLOATS}, {FLOATS}, {FLOATS}, int64, float64, {FLOATS}, {FLOATS})")
def batch_queue(arrivals_s, p50_s, sigma, replicas, hold_s, normals, uniforms):
    """Requests that go to the replica with the fewest under way, which answers all that wait for it as one batch.

    Args:
        arrivals_s: ascending, [N].
        p50_s, sigma: of a batch by rows, [R + 1]; R is the most rows of a batch.
        hold_s: an idle replica begins after a part of this, drawn evenly: other work ends its step first.
        normals, uniforms: the chance in it, [N] each; a batch uses one of both.

    Returns:
        latency of each request in seconds, [N]; time that all replicas computed; batches.
    """
    count, most = len(arrivals_s), len(p50_s) - 1
    latency_s = np.zeros(count)
    following = np.full(count, -1)  # of each request, the one behind it at the same replica
    head, tail = np.full(replicas, -1), np.full(replicas, -1)
    waiting, inside = np.zeros(replicas, np.int64), np.zeros(replicas, np.int64)
    free_s = np.zeros(replicas)
    busy_s, batches, turn = 0.0, 0, 0
    for number in range(count + 1):
        now_s = arrivals_s[number] if number < count else np.inf
        for each in range(replicas):  # batches that begin before now
            while waiting[each] > 0 and free_s[each] <= now_s:
                rows = min(waiting[each], most)
                took_s = p50_s[rows] * np.exp(sigma[rows] * normals[batches])
                end_s = free_s[each] + took_s
                for _ in range(rows):
                    latency_s[head[each]] = end_s - arrivals_s[head[each]]
                    head[each] = following[head[each]]
                waiting[each] -= rows
                inside[each], free_s[each] = rows, end_s
                busy_s += took_s
                batches += 1
            if free_s[each] <= now_s:
                inside[each] = 0
        if number == count:
            break
        chosen = turn % replicas
        for step in range(1, replicas):  # ties go round
            each = (turn + step) % replicas
            if waiting[each] + inside[each] < waiting[chosen] + inside[chosen]:
                chosen = each
        turn = chosen + 1
        if waiting[chosen] + inside[chosen] == 0:
            took_s = p50_s[1] * np.exp(sigma[1] * normals[batches])
            end_s = now_s + hold_s * uniforms[batches] + took_s
            latency_s[number] = end_s - now_s
            inside[chosen], free_s[chosen] = 1, end_s
            busy_s += took_s
            batches += 1
            continue
        if waiting[chosen] == 0:
            head[chosen] = number
        else:
            following[tail[chosen]] = number
        tail[chosen] = number
        waiting[chosen] += 1
    return latency_s, busy_s, batches
