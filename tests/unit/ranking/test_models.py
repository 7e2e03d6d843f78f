"""The split models score as the unsplit ones would, and every row for itself."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn import functional

from ranking.coarse import CoarseRanker
from ranking.fine import FineRanker
from ranking.groups import GroupedRows
from ranking.inputs import Fields


@pytest.fixture(params=["fine", "coarse"])
def model(request, rankers):
    return getattr(rankers, request.param).model


def inputs(data, rows=slice(0, 6)):
    """Fields, history and signal of some users with histories of different lengths, one of them empty."""
    users = Fields(data.users.cat[2:][rows], data.users.num[2:][rows], data.users.multi[2:][rows])
    length = torch.arange(len(users.cat)) * 2
    history = torch.randint(2, len(data.items.cat), (len(users.cat), data.spec.history), generator=torch.manual_seed(0))
    history = history * (torch.arange(data.spec.history) < length[:, None])
    return users, history, (history > 0).long() * (1 + history % 2)


def unsplit_fine(m: FineRanker, fields: Fields, history, signal, item: Fields) -> torch.Tensor:
    """The fine model row by row, straight from its definition: one concatenated input, whole weight matrices."""
    c, out = m.config, []
    for row in range(len(fields.cat)):
        live = history[row] > 0
        events = m.history.items(history[row]) * (1 + m.history.scale(signal[row])) + m.history.shift(signal[row])
        keys, values = m.history.keys(events)[live], m.history.values(events)[live]
        profile = m.user_fields(Fields(fields.cat[row], fields.num[row], fields.multi[row]))
        liked, n = signal[row][live] == 2, int(live.sum())
        means = [values[kept].sum(0) / (kept.sum() + 1) for kept in (liked, ~liked, torch.arange(n) < 10)]
        shares = torch.tensor([float(liked.sum()) / (n + 1), float(np.log1p(n)) / 5])
        xu = torch.cat([profile, *means, shares])
        for candidate in range(len(item.cat)):
            xi = m.item_fields(Fields(item.cat[candidate], item.num[candidate], item.multi[candidate]))
            heads = []
            width = c.attention // c.heads
            for h in range(c.heads):
                span = slice(h * width, (h + 1) * width)
                scores = torch.cat([keys, m.history.rest[None]])[:, span] @ m.query(xi)[span] / width**0.5
                heads.append(torch.softmax(scores, 0)[:-1] @ values[:, span])
            x0 = torch.cat([xu, xi, *heads])
            x = x0
            for layer in m.crosses:
                x = x0 * (layer.up.weight @ (layer.down.weight @ x) + layer.up.bias) + x
            product = (m.user_factors.weight @ xu) * m.item_factors(xi)
            hidden = functional.relu(m.deep_mid(torch.cat([functional.relu(m.deep_in(x0)), product])))
            bias = m.user_bias(fields.cat[row, 0]) + m.item_bias(item.cat[candidate, 0])
            out.append(m.out(torch.cat([x, product, hidden])) + bias)
    return torch.stack(out).view(len(fields.cat), len(item.cat), -1)


@torch.no_grad()
def test_the_split_fine_model_equals_the_unsplit_one(rankers, data):
    users, history, signal = inputs(data)
    items = data.items.take(torch.tensor([1, 4, 9]))
    model = rankers.fine.model
    whole = unsplit_fine(model, users, history, signal, items)
    states = model.encode_item(items).expand(len(history), -1, -1)
    split = model.cross(model.encode_user(users, history, signal), states)
    torch.testing.assert_close(split, whole, rtol=0, atol=1e-5)


@torch.no_grad()
def test_a_batch_of_one_scores_as_its_row_of_many(model, data):
    users, history, signal = inputs(data)
    items = model.encode_item(data.items.take(torch.randint(1, len(data.items.cat), (len(history), 4))))
    many = model.cross(model.encode_user(users, history, signal), items)
    for row in range(len(history)):
        only = slice(row, row + 1)
        fields = Fields(users.cat[only], users.num[only], users.multi[only])
        one = model.cross(model.encode_user(fields, history[only], signal[only]), items[only])
        torch.testing.assert_close(one[0], many[row], rtol=0, atol=1e-6)


@torch.no_grad()
def test_a_candidates_score_does_not_depend_on_the_others(model, data):
    users, history, signal = inputs(data)
    items = model.encode_item(data.items.take(torch.randint(1, len(data.items.cat), (len(history), 7))))
    user = model.encode_user(users, history, signal)
    torch.testing.assert_close(model.cross(user, items)[:, 3:4], model.cross(user, items[:, 3:4]), rtol=0, atol=1e-6)


@torch.no_grad()
def test_padding_of_a_history_changes_nothing(model, data):
    users, history, signal = inputs(data)
    item = model.encode_item(data.items.take(torch.full((len(history), 1), 3)))
    wide = functional.pad(history, (0, 5)), functional.pad(signal, (0, 5))
    same = model.cross(model.encode_user(users, *wide), item)
    torch.testing.assert_close(same, model.cross(model.encode_user(users, history, signal), item), rtol=0, atol=1e-6)


@torch.no_grad()
def test_rows_in_groups_score_as_rows_alone(model, data):
    rows = data.train.take(np.arange(40))
    model.eval()
    found = []
    for size in (1, 8):
        grouped = GroupedRows(rows, data.train, data.spec.history, size, "others")
        batch = grouped.batch(grouped.groups(None))
        user = data.users.take(torch.from_numpy(batch.users))
        item = data.items.take(torch.from_numpy(rows.items[np.maximum(batch.rows, 0)]).long())
        events = (torch.from_numpy(a) for a in (batch.history, batch.signal))
        logits = model(user, *events, item, torch.from_numpy(batch.mask)).numpy()
        out = np.zeros((len(rows), logits.shape[2]), np.float32)
        out[batch.rows[batch.rows >= 0]] = logits[batch.rows >= 0]
        found.append(out)
    np.testing.assert_allclose(found[0], found[1], atol=1e-5)


@pytest.mark.parametrize("kind", [FineRanker, CoarseRanker])
def test_an_empty_history_and_unknown_ids_give_finite_scores(kind, rankers, data, synthetic):
    config = synthetic.FINE if kind is FineRanker else synthetic.COARSE
    torch.manual_seed(0)
    model = kind(data.spec, replace(config, objectives=("engage",))).eval()
    users = Fields(torch.ones(2, 2, dtype=torch.long), torch.zeros(2, 1), torch.ones(2, 1, 3, dtype=torch.long))
    nothing = torch.zeros(2, data.spec.history, dtype=torch.long)
    logits = model(users, nothing, nothing, data.items.take(torch.ones(2, 3, dtype=torch.long)))
    assert logits.shape == (2, 3, 1) and bool(torch.isfinite(logits).all())
