"""What the atlas takes as a file: places that nobody has described yet."""

from __future__ import annotations

from collections.abc import Mapping

from django import forms

from django_jobs.contrib.transfer.importers import Importer, importer

from .models import City


class CityForm(forms.ModelForm):  # not generic at run time
    """A city as a file has it: each row is cleaned as if somebody had typed it."""

    class Meta:
        model = City
        fields = ["id", "name", "country", "latitude", "longitude", "population", "time_zone"]

    def clean_latitude(self) -> float:
        """Refuse what is no place on earth."""
        value: float = self.cleaned_data["latitude"]
        if not -90 <= value <= 90:
            raise forms.ValidationError("A latitude is between -90 and 90.")
        return value


@importer
class Cities(Importer):
    """Cities, with the codes of their countries"""

    name = "cities"
    form_class = CityForm
    columns = {
        "Id": "id",
        "Name": "name",
        "Country": "country",
        "Latitude": "latitude",
        "Longitude": "longitude",
        "Population": "population",
        "Time zone": "time_zone",
    }
    permission = "atlas.add_city"

    def form(self, data: Mapping[str, str]) -> forms.BaseForm:
        """Change the city if it is there."""
        known = City.objects.filter(pk=data["id"]).first() if data["id"].isdigit() else None
        return CityForm(data, instance=known)
