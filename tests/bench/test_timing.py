from torchscn.bench.timing import best_times, peak_memory


def test_timing_takes_turns_and_spares_slow_ones(monkeypatch):
    clock = iter(range(1000))
    monkeypatch.setattr("time.perf_counter", lambda: next(clock))
    order = []

    def slow():
        order.append("slow")
        for _ in range(10):
            next(clock)

    times = best_times({"quick": lambda: order.append("quick"), "slow": slow}, rounds=3, slow=5)
    assert order == ["quick", "slow", "quick", "quick"]
    assert times == {"quick": 1, "slow": 11}


def test_peak_memory_is_of_the_code_alone():
    small, large = peak_memory("x = 1\n"), peak_memory("x = bytearray(200 * 2**20)\n")
    assert 190 < large - small < 230
