"""Settings of a tiny run whose members are connected."""

LENGTH, POINTS = 6, 5
SETTINGS = (
    "ensemble.methods=['FGE','PFGE']",
    "connect.unit=iterations",
    f"connect.length={LENGTH}",
    f"connect.points={POINTS}",
)
