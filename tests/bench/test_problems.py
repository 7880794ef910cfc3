from torchscn.bench.problems import layer_sizes


def test_layer_sizes_are_those_of_the_network():
    assert [str(size) for size in layer_sizes(1)] == [
        "3 to 16, 32 x 32",
        "16 to 16, 32 x 32",
        "32 to 32, 16 x 16",
        "64 to 64, 8 x 8",
    ]
