"""Countries, cities, pictures and nightly reports."""

from __future__ import annotations

from django.db import models
from django.urls import reverse


class Country(models.Model):
    """A country as the data set has it."""

    code = models.CharField(primary_key=True, max_length=2)
    name = models.CharField(max_length=100, db_index=True)
    continent = models.CharField(max_length=20)
    area_km2 = models.FloatField()
    population = models.BigIntegerField()
    currency = models.CharField(max_length=40, blank=True)

    class Meta:
        verbose_name_plural = "countries"
        ordering = ["name"]

    def __str__(self) -> str:
        return self.name

    def get_absolute_url(self) -> str:
        """Return the address of the country's page."""
        return reverse("country", args=[self.code])


class CityQuerySet(models.QuerySet["City"]):
    """Cities, with a name for the question that the site asks most."""

    def described(self) -> CityQuerySet:
        """Cities whose job has run."""
        return self.filter(described_at__isnull=False)


class City(models.Model):
    """A city: above, what the import copies; below, what the job `describe_city` works out."""

    id = models.IntegerField(primary_key=True)  # its id at GeoNames
    name = models.CharField(max_length=200)
    country = models.ForeignKey(Country, on_delete=models.CASCADE, related_name="cities")
    latitude = models.FloatField()
    longitude = models.FloatField()
    population = models.BigIntegerField()
    time_zone = models.CharField(max_length=40)
    alternate_names = models.JSONField(default=list, blank=True)
    is_capital = models.BooleanField(default=False)

    described_at = models.DateTimeField(null=True, editable=False)
    search_key = models.CharField(max_length=200, blank=True)
    names = models.JSONField(default=dict, blank=True)  # script -> name
    km_to_capital = models.FloatField(null=True, blank=True)
    big_city = models.ForeignKey("self", on_delete=models.SET_NULL, null=True, blank=True, related_name="+", db_index=False)
    km_to_big_city = models.FloatField(null=True, blank=True)
    big_city_direction = models.CharField(max_length=2, blank=True)
    sun_minutes = models.IntegerField(null=True, blank=True)  # by how much the clocks are ahead of the sun
    map_png = models.BinaryField(default=b"", editable=False)  # some 500 bytes

    objects = CityQuerySet.as_manager()

    class Meta:
        verbose_name_plural = "cities"
        ordering = ["-population", "id"]
        # `described_at` has no index on purpose: 27,000 jobs write it, and an update that touches no index is much cheaper.
        indexes = [models.Index(fields=["country", "-population", "id"], name="atlas_city_biggest")]

    def __str__(self) -> str:
        return self.name

    def get_absolute_url(self) -> str:
        """Return the address of the city's page."""
        return reverse("city", args=[self.pk])


class Picture(models.Model):
    """A map that a job has drawn: "world", or a country's code."""

    name = models.CharField(primary_key=True, max_length=20)
    png = models.BinaryField(editable=False)
    drawn_at = models.DateTimeField()

    def __str__(self) -> str:
        return self.name


class NightlyReport(models.Model):
    """What the job `nightly_report` found on one day."""

    day = models.DateField(primary_key=True)
    text = models.TextField()

    class Meta:
        ordering = ["-day"]

    def __str__(self) -> str:
        return str(self.day)
