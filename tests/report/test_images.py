"""The pictures of a freeze show the map of the heads in the colours of the page."""

import matplotlib as mpl
import numpy as np

from saf_titan.report.colors import COLORS, color_index
from saf_titan.report.heads import maps_of_freeze
from saf_titan.report.images import freeze_images
from tests.report.runs import calibration
from tests.saf.plans import plan_of


def test_pictures_of_a_freeze() -> None:
    statistics = calibration()
    plan = plan_of(statistics, step=60, rate=0.5, max_fit_kl=0.2, on_shortfall="warn")
    maps = maps_of_freeze(statistics, plan, 60)
    images = freeze_images(maps, num_patterns=3)
    assert [name for name in images if name.startswith("heads/")] == [f"heads/{metric.name}" for metric in maps.metrics]
    assert len([name for name in images if name.startswith("patterns/")]) == 3
    for image in images.values():
        assert image.dtype == np.uint8
        assert image.shape[2] == 3
    index_LH, _ = color_index(maps.metrics[0])
    static = {head.slot for head in plan.heads}
    for layer in range(2):
        for head in range(4):
            cell = images["heads/variance"][layer * 20 + 2 : layer * 20 + 20, head * 20 + 2 : head * 20 + 20]
            expected = np.rint(np.array(mpl.colors.to_rgb(COLORS[index_LH[layer, head]])) * 255)
            assert (cell[0, 0] == expected).all()
            assert (cell[9, 9] == (255 if (layer, head) in static else expected)).all()


def test_the_future_of_a_pattern_is_white() -> None:
    statistics = calibration()
    plan = plan_of(statistics, step=60, rate=0.5, max_fit_kl=0.2, on_shortfall="warn")
    image = freeze_images(maps_of_freeze(statistics, plan, 60), num_patterns=1)
    (pair,) = (image[name] for name in image if name.startswith("patterns/"))
    width = pair.shape[1] // 2
    assert (pair[0, 4:width] == 255).all()
    assert (pair[0, 0] != 255).any()
    assert (pair[0, width] != 255).any()
