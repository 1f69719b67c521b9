"""Packed words: the golden numbers of the specification, and every rejection."""

import pytest

from allocator.errors import PackingError
from allocator.packing import Layout, NodeWords, decode, encode, node_resources, read_node, width

LAYOUT = "gpupack.io/packed-layout"
REVISION = "gpupack.io/packed-revision"
SIZE_0 = "gpupack.io/packed-size-0"
USED_0 = "gpupack.io/packed-used-0"
COMPUTE_LIMIT = "gpupack.io/packed-compute-limit"
COMPUTE_0 = "gpupack.io/packed-compute-used-0"


@pytest.mark.parametrize(
    ("values", "bits", "words"),
    [
        ([20, 20, 20, 20], 5, [676500]),
        ([5, 0, 3], 3, [197]),
        ([104, 7], 7, [1000]),
        ([80] * 8, 7, [354614143887440, 80]),
        ([127] * 7, 7, [562949953421311]),
        ([127] * 8, 7, [562949953421311, 127]),
        ([0] * 7 + [80], 7, [0, 80]),
        ([255] * 8, 8, [281474976710655, 65535]),
        ([141] * 16, 8, [155639104769421, 155639104769421, 2374864269]),
        (list(range(16)), 8, [5514788471040, 12137729099526, 252579084]),
        ([], 7, []),
        ([2**53 - 1], 53, [2**53 - 1]),
        ([2**27 - 1, 1], 27, [2**27 - 1, 1]),
        ([1] * 53, 1, [2**53 - 1]),
        ([1] * 54, 1, [2**53 - 1, 1]),
    ],
)
def test_words(values, bits, words):
    layout = Layout(bits, len(values), 1024)
    assert encode(values, layout) == tuple(words)
    assert decode(words, layout) == tuple(values)
    assert layout.word_count == len(words)


@pytest.mark.parametrize(
    ("largest", "bits"),
    [(0, 1), (1, 1), (2, 2), (20, 5), (80, 7), (127, 7), (128, 8), (141, 8), (256, 9), (2**53 - 1, 53)],
)
def test_width(largest, bits):
    assert width(largest) == bits


@pytest.mark.parametrize("largest", [-1, 2**53])
def test_width_refuses(largest):
    with pytest.raises(PackingError, match=f"card size of {largest} units; allowed: 0 to 9007199254740991"):
        width(largest)


@pytest.mark.parametrize(
    ("layout", "header"),
    [
        (Layout(7, 8, 1024), 1073750129),
        (Layout(8, 16, 512), 536887425),
        (Layout(7, 8, 1024, version=2), 1073750130),
    ],
)
def test_header(layout, header):
    assert layout.header == header
    assert Layout.from_header(header) == layout


@pytest.mark.parametrize(
    ("bits", "cards", "unit_mib", "part"),
    [
        (0, 8, 1024, "field width 0"),
        (54, 8, 1024, "field width 54"),
        (7, -1, 1024, "card count -1"),
        (7, 1024, 1024, "card count 1024"),
        (7, 8, 0, "unit in MiB 0"),
        (7, 8, 1 << 24, "unit in MiB 16777216"),
    ],
)
def test_impossible_layouts(bits, cards, unit_mib, part):
    with pytest.raises(PackingError, match=f"^layout with {part}; allowed:"):
        Layout(bits, cards, unit_mib)


@pytest.mark.parametrize(
    ("header", "problem"),
    [
        (-1, "44 bits, not negative"),
        (1 << 44, "44 bits, not negative"),
        (0, "version 0; allowed: 1 or 2"),
        (1073750131, "version 3; allowed: 1 or 2"),
        (1073750129 & ~0x3F0, "field width 0"),
        (1073750129 | 0x3F0, "field width 63"),
        (1073750129 & 0xFFFFF, "unit in MiB 0"),
    ],
)
def test_bad_headers(header, problem):
    with pytest.raises(PackingError, match=problem):
        Layout.from_header(header)


@pytest.mark.parametrize(
    ("values", "bits", "problem"),
    [
        ([128, 5], 7, "card 0 has value 128; allowed: 0 to 127, 7 bits"),
        ([0, -1], 7, "card 1 has value -1"),
        ([1], 7, "1 values for 2 cards"),
        ([1, 2, 3], 7, "3 values for 2 cards"),
    ],
)
def test_encode_never_masks(values, bits, problem):
    with pytest.raises(PackingError, match=problem):
        encode(values, Layout(bits, 2, 1024))


@pytest.mark.parametrize(
    ("words", "layout", "problem"),
    [
        ([], Layout(7, 8, 1024), "0 words for 8 cards of 7 bits; allowed: 2"),
        ([0], Layout(7, 8, 1024), "1 words"),
        ([0, 0, 0], Layout(7, 8, 1024), "3 words"),
        ([-1, 0], Layout(7, 8, 1024), "word 0 is -1"),
        ([0, 1 << 7], Layout(7, 8, 1024), "word 1 is 128; allowed: 1 cards of 7 bits"),
        ([1 << 49, 0], Layout(7, 8, 1024), "word 0 is 562949953421312"),
        ([1 << 14], Layout(7, 2, 1024), "word 0 is 16384"),
        ([0], Layout(7, 0, 1024), "1 words for 0 cards"),
    ],
)
def test_decode_never_masks(words, layout, problem):
    with pytest.raises(PackingError, match=problem):
        decode(words, layout)


@pytest.mark.parametrize(
    ("sizes", "used", "revision", "problem"),
    [
        ((16,), (8, 8), 0, "1 sizes for 2 cards"),
        ((16, 16), (8,), 0, "1 used values for 2 cards"),
        ((16, 16), (8, 17), 0, "card 1 has 17 of 16 units used; allowed: 0 <= used <= size <= 31"),
        ((16, 16), (-1, 0), 0, "card 0 has -1 of 16"),
        ((32, 16), (0, 0), 0, "card 0 has 0 of 32"),
        ((16, 16), (0, 0), -1, "revision -1"),
        ((16, 16), (0, 0), 1 << 53, "revision 9007199254740992; allowed: 53 bits"),
    ],
)
def test_node_words_invariant(sizes, used, revision, problem):
    with pytest.raises(PackingError, match=problem):
        NodeWords(Layout(5, 2, 1024), sizes, used, revision)


@pytest.mark.parametrize(
    ("version", "limit", "compute", "problem"),
    [
        (1, 100, (0, 0), "compute limit 100; allowed: 0 to 0 percent"),
        (1, 0, (0, 0), "2 values of used compute for 0 cards"),
        (2, 0, (), "compute limit 0; allowed: 1 to 1000 percent"),
        (2, 1001, (0, 0), "compute limit 1001; allowed: 1 to 1000 percent"),
        (2, 100, (0,), "1 values of used compute for 2 cards"),
        (2, 100, (0, 101), "card 1 has 101 percent of compute used; allowed: 0 to 100"),
        (2, 100, (-1, 0), "card 0 has -1 percent of compute used"),
    ],
)
def test_invariant_of_compute(version, limit, compute, problem):
    with pytest.raises(PackingError, match=problem):
        NodeWords(Layout(5, 2, 1024, version), (16, 16), (8, 8), 0, limit, compute)


def test_narrowest_layout():
    words = NodeWords.of(1024, [79, 39], [0, 39], 5)
    assert words == NodeWords(Layout(7, 2, 1024), (79, 39), (0, 39), 5)
    assert NodeWords.of(1024, [], [], 5).layout == Layout(1, 0, 1024)


def test_node_resources():
    words = NodeWords.of(1024, [80] * 8, [0] * 7 + [80], 1_763_000_000_001)
    assert node_resources(words) == {
        LAYOUT: 1073750129,
        SIZE_0: 354614143887440,
        "gpupack.io/packed-size-1": 80,
        USED_0: 0,
        "gpupack.io/packed-used-1": 80,
        REVISION: 1_763_000_000_001,
    }


@pytest.mark.parametrize(
    ("limit", "used", "compute_words"),
    [
        (100, [30, 90, 0, 100, 7, 0, 0, 50], [2088774942, 50]),  # fields of 7 bits, 7 in a word
        (200, [30, 90, 0, 200], [3355466270]),  # fields of 8 bits
        (1000, [0, 0, 0, 0, 0, 1000], [0, 1000]),  # fields of 10 bits, 5 in a word
    ],
)
def test_node_resources_with_compute(limit, used, compute_words):
    sizes = [80] * len(used)
    words = NodeWords.of(1024, sizes, [0] * len(used), 5, limit, used)
    without = node_resources(NodeWords.of(1024, sizes, [0] * len(used), 5))
    assert node_resources(words) == without | {LAYOUT: without[LAYOUT] + 1, COMPUTE_LIMIT: limit} | {
        f"gpupack.io/packed-compute-used-{index}": word for index, word in enumerate(compute_words)
    }
    assert read_node(node_resources(words)) == words


def test_version_1_says_nothing_of_compute():
    words = read_node(node_resources(NodeWords.of(1024, [80], [8], 5)))
    assert (words.layout.version, words.compute_limit, words.compute_used) == (1, 0, ())


def test_reads_what_the_api_server_prints():
    resources = {
        "cpu": "64",
        "memory": "rubbish is not ours",
        LAYOUT: str(Layout(7, 2, 1024).header),
        SIZE_0: str(encode([120, 7], Layout(7, 2, 1024))[0]),
        USED_0: "1k",
        REVISION: "12345k",
    }
    assert read_node(resources) == NodeWords(Layout(7, 2, 1024), (120, 7), (104, 7), 12_345_000)


@pytest.mark.parametrize("resources", [{}, {"cpu": "64", "gpupack.io/gpu-memory-gib": "640"}])
def test_nodes_without_words(resources):
    assert read_node(resources) is None


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({LAYOUT: None}, f"resource {LAYOUT} is missing"),
        ({SIZE_0: None}, f"resource {SIZE_0} is missing"),
        ({USED_0: None}, f"resource {USED_0} is missing"),
        ({REVISION: None}, f"resource {REVISION} is missing"),
        ({SIZE_0: "0.5"}, f'resource {SIZE_0}: quantity "0.5"'),
        ({LAYOUT: "soup"}, f'resource {LAYOUT}: quantity "soup"'),
        ({LAYOUT: 3}, "version 3"),
        ({REVISION: "-1"}, "revision -1"),
        ({USED_0: "16384"}, r"gpupack.io/packed-used-\*: word 0 is 16384"),
        ({USED_0: "121"}, "card 0 has 121 of 120 units used"),
        ({"gpupack.io/packed-size-1": "0"}, 'resource "gpupack.io/packed-size-1" is not in the layout'),
        ({"gpupack.io/packed-used-00": "0"}, 'resource "gpupack.io/packed-used-00" is not in the layout'),
        ({COMPUTE_LIMIT: None}, f"resource {COMPUTE_LIMIT} is missing"),
        ({COMPUTE_LIMIT: 0}, "compute limit 0; allowed: 1 to 1000 percent"),
        ({COMPUTE_LIMIT: 1001}, "compute limit 1001; allowed: 1 to 1000 percent"),
        ({COMPUTE_LIMIT: "-1"}, "compute limit -1; allowed: 1 to 1000 percent"),
        ({COMPUTE_0: None}, f"resource {COMPUTE_0} is missing"),
        ({COMPUTE_0: 101}, "card 0 has 101 percent of compute used; allowed: 0 to 100"),
        ({COMPUTE_0: 1 << 14}, r"gpupack.io/packed-compute-used-\*: word 0 is 16384"),
        ({"gpupack.io/packed-compute-used-1": "0"}, 'compute-used-1" is not in the layout'),
        ({USED_0: None, "gpupack.io/packed-used-x": "0"}, 'resource "gpupack.io/packed-used-x" is not in'),
    ],
)  # fmt: skip
def test_corrupt_nodes(change, problem):
    words = NodeWords(Layout(7, 2, 1024, 2), (120, 7), (104, 7), 9, 100, (30, 90))
    resources = dict(node_resources(words))
    resources.update(change)
    with pytest.raises(PackingError, match=problem):
        read_node({name: value for name, value in resources.items() if value is not None})


def test_other_packed_names_are_left_to_later_versions():
    words = NodeWords.of(1024, [16], [4], 1)
    assert read_node({**node_resources(words), "gpupack.io/packed-later": "soup"}) == words
