import pytest

from training.schedule import Schedule


@pytest.mark.parametrize(
    ("update", "rate"),
    [(1, 512**-0.5 * 10**-1.5), (2, 2 * 512**-0.5 * 10**-1.5), (10, 512**-0.5 * 10**-0.5), (11, 512**-0.5 * 11**-0.5)],
)
def test_the_rate_is_formula_3(update: int, rate: float) -> None:
    assert Schedule(512, warmup=10)(update) == pytest.approx(rate, rel=1e-12)


def test_base_peaks_at_update_4000_with_the_published_rate() -> None:
    schedule = Schedule(512)
    rates = [schedule(update) for update in range(1, 8001)]
    assert max(rates) == schedule(4000) == pytest.approx(6.99e-4, rel=1e-3)
    assert rates[0] == pytest.approx(512**-0.5 * 4000**-1.5)
    assert rates[:4000] == sorted(rates[:4000])
    assert rates[3999:] == sorted(rates[3999:], reverse=True)


@pytest.mark.parametrize("warmup", [0, 1])
def test_no_warm_up_starts_at_the_top(warmup: int) -> None:
    schedule = Schedule(64, warmup=warmup)
    assert schedule(1) == 64**-0.5
    assert schedule(4) == 64**-0.5 / 2


def test_updates_count_from_one() -> None:
    with pytest.raises(ValueError, match="count from 1"):
        Schedule(512)(0)


def test_the_cooldown_multiplies_by_a_line_that_ends_just_above_zero() -> None:
    plain, cooled = Schedule(512, warmup=10), Schedule(512, warmup=10, updates=100, cooldown=20)
    assert cooled(80) == plain(80)
    assert cooled(91) == pytest.approx(plain(91) / 2)
    assert cooled(100) == pytest.approx(plain(100) / 20)


def test_the_scale_multiplies() -> None:
    assert Schedule(512, scale=2.0)(7) == 2 * Schedule(512)(7)
