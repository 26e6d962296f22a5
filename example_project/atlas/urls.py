"""Addresses of the atlas."""

from django.urls import path

from . import views

urlpatterns = [
    path("", views.home, name="home"),
    path("countries/<str:code>/", views.country, name="country"),
    path("cities/<int:pk>/", views.city, name="city"),
    path("cities/<int:pk>.png", views.city_map, name="city-map"),
    path("maps/<str:name>.png", views.picture, name="picture"),
    path("progress.json", views.progress, name="progress"),
    path("world/draw/", views.enqueue_world, name="enqueue-world"),
    path("world/jobs/<uuid:job_id>.json", views.watch, name="watch"),
]
