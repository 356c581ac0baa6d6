"""A small SVG writer and axes: shapes and text in pixels from the top left, on white paper."""
import math
from xml.sax.saxutils import escape, quoteattr

INK, GRID = "#222222", "#dddddd"
COLOURS = ["#1b6ca8", "#c8553d", "#2e8b57", "#8452a1", "#b8860b", "#444444"]


class Svg:
    def __init__(self, width, height):
        self.parts = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
                      f'viewBox="0 0 {width} {height}" font-family="sans-serif" fill="{INK}">',
                      f'<rect width="{width}" height="{height}" fill="#ffffff"/>']

    def line(self, x1, y1, x2, y2, colour, dashes=""):
        more = f' stroke-dasharray="{dashes}"' if dashes else ""
        self.parts.append(f'<line x1="{x1:.2f}" y1="{y1:.2f}" x2="{x2:.2f}" y2="{y2:.2f}" '
                          f'stroke="{colour}"{more}/>')

    def polyline(self, points, colour):
        joined = " ".join(f"{x:.2f},{y:.2f}" for x, y in points)
        self.parts.append(f'<polyline fill="none" stroke="{colour}" stroke-width="2" '
                          f'points={quoteattr(joined)}/>')

    def dot(self, x, y, colour, title):
        self.parts.append(f'<circle cx="{x:.2f}" cy="{y:.2f}" r="3.5" fill="{colour}">'
                          f"<title>{escape(title)}</title></circle>")

    def text(self, x, y, text, size=12, anchor="start", bold=False):
        weight = ' font-weight="bold"' if bold else ""
        self.parts.append(f'<text x="{x:.2f}" y="{y:.2f}" font-size="{size}" '
                          f'text-anchor="{anchor}"{weight}>{escape(text)}</text>')

    def text_upwards(self, x, y, text):
        self.parts.append(f'<text transform="translate({x:.2f} {y:.2f}) rotate(-90)" font-size="12" '
                          f'text-anchor="middle">{escape(text)}</text>')

    def document(self):
        return "\n".join([*self.parts, "</svg>", ""])


class Axis:
    """Positive values between two places in pixels, logarithmic with some room, or from 0 on."""

    def __init__(self, values, start, end, logarithmic):
        least, most = min(values), max(values)
        room = max(1.06, (most / least) ** 0.04)
        self.least, self.most = (least / room, most * room) if logarithmic else (0, most * 1.08)
        self.start, self.end, self.logarithmic = start, end, logarithmic

    def __call__(self, value):
        share = (math.log(value / self.least) / math.log(self.most / self.least) if self.logarithmic
                 else (value - self.least) / (self.most - self.least))
        return self.start + (self.end - self.start) * share

    def ticks(self):
        if not self.logarithmic:
            power = 10 ** math.floor(math.log10(self.most / 8))
            step = next(f * power for f in (1, 2, 5, 10) if f * power * 8 >= self.most)
            return [i * step for i in range(int(self.most / step) + 1)]
        powers = range(math.floor(math.log10(self.least)), math.ceil(math.log10(self.most)) + 1)
        return [f * 10.0 ** power for power in powers for f in (1, 2, 5)
                if self.least <= f * 10.0 ** power <= self.most]


class Chart:
    """A frame with titles and a legend at the right; x and y are the axes."""
    LEFT, TOP, WIDTH, HEIGHT, LEGEND = 64, 40, 520, 340, 170

    def __init__(self, title, x_title, y_title, x_values, y_values, x_log=True, y_log=True,
                 x_ticks=None, x_words="{:.4g}".format):
        self.svg = Svg(self.LEFT + self.WIDTH + self.LEGEND, self.TOP + self.HEIGHT + 54)
        bottom, right = self.TOP + self.HEIGHT, self.LEFT + self.WIDTH
        self.x = Axis(x_values, self.LEFT, right, x_log)
        self.y = Axis(y_values, bottom, self.TOP, y_log)
        self.legend_y = self.TOP + 10
        self.svg.text(self.LEFT, 22, title, 14, bold=True)
        for tick in x_ticks or self.x.ticks():
            self.svg.line(self.x(tick), bottom, self.x(tick), self.TOP, GRID)
            self.svg.text(self.x(tick), bottom + 16, x_words(tick), 11, "middle")
        for tick in self.y.ticks():
            self.svg.line(self.LEFT, self.y(tick), right, self.y(tick), GRID)
            self.svg.text(self.LEFT - 6, self.y(tick) + 4, f"{tick:.4g}", 11, "end")
        self.svg.line(self.LEFT, bottom, right, bottom, INK)
        self.svg.line(self.LEFT, bottom, self.LEFT, self.TOP, INK)
        self.svg.text((self.LEFT + right) / 2, bottom + 40, x_title, 12, "middle")
        self.svg.text_upwards(self.LEFT - 46, self.TOP + self.HEIGHT / 2, y_title)

    def legend(self, name, colour):
        x = self.LEFT + self.WIDTH + 14
        self.svg.dot(x, self.legend_y, colour, name)
        self.svg.text(x + 10, self.legend_y + 4, name)
        self.legend_y += 20

    def level(self, value, words):
        """A dashed line across, named above its right end."""
        self.svg.line(self.LEFT, self.y(value), self.LEFT + self.WIDTH, self.y(value), INK, "6 4")
        self.svg.text(self.LEFT + self.WIDTH - 4, self.y(value) - 5, words, 11, "end")

    def points(self, name, points, colour, joined):
        """`points` are (x, y, words that a pointer shows)."""
        if joined and len(points) > 1:
            self.svg.polyline([(self.x(x), self.y(y)) for x, y, _ in points], colour)
        for x, y, words in points:
            self.svg.dot(self.x(x), self.y(y), colour, words)
        self.legend(name, colour)

    def document(self):
        return self.svg.document()
