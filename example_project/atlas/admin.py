"""The atlas in the admin; the jobs have pages of their own there, which django_jobs brings."""

from django.contrib import admin

from django_jobs.contrib.transfer.admin import ExportAsJob

from .models import City, Country, NightlyReport


@admin.register(Country)
class CountryAdmin(admin.ModelAdmin):
    """Countries."""

    list_display = ["name", "code", "continent", "population"]
    list_filter = ["continent"]
    search_fields = ["name", "code"]


@admin.register(City)
class CityAdmin(ExportAsJob, admin.ModelAdmin):  # type: ignore[misc] # get_actions is Django's own
    """Cities, with what the jobs found out, and an action that exports the selection by a job."""

    export_fields = ["id", "name", "country_id", "latitude", "longitude", "population", "time_zone", "km_to_capital"]

    list_display = ["name", "country", "population", "km_to_capital", "big_city", "sun_minutes", "described_at"]
    list_select_related = ["country", "big_city"]
    list_filter = ["is_capital"]
    search_fields = ["name", "search_key"]
    raw_id_fields = ["country", "big_city"]
    show_full_result_count = False


admin.site.register(NightlyReport)
