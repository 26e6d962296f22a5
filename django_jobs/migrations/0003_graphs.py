"""The tables of graphs and batches, and unique keys that end at the start of a job."""

import django.db.models.deletion
import django_jobs.db
import django_jobs.ids
import django_jobs.models.fields
import django_jobs.serializers
from django.db import migrations, models

_DROP = "ALTER TABLE django_jobs_job DROP INDEX django_jobs_job_unique_live, DROP COLUMN unique_key_live"
_ADD = (
    "ALTER TABLE django_jobs_job ADD COLUMN unique_key_live varchar(128) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"
    " AS (CASE WHEN %s THEN unique_key END) VIRTUAL, ADD UNIQUE INDEX django_jobs_job_unique_live (unique_key_live)"
)
_PENDING = "status IN ('waiting', 'scheduled', 'ready')"


def change_live_unique_key(apps, schema_editor):
    """Where no partial unique index exists: the generated column of the first migration, for jobs that are unique until started."""
    if schema_editor.connection.vendor == "mysql":
        schema_editor.execute(_DROP)
        schema_editor.execute(_ADD % f"{_PENDING} OR (status = 'running' AND unique_until IN ('', 'pruned')) OR (status = 'succeeded' AND unique_until = 'pruned')")


def restore_live_unique_key(apps, schema_editor):
    """Undo `change_live_unique_key`."""
    if schema_editor.connection.vendor == "mysql":
        schema_editor.execute(_DROP)
        schema_editor.execute(_ADD % f"{_PENDING} OR status = 'running'")


class Migration(migrations.Migration):

    dependencies = [
        ('django_jobs', '0002_http'),
    ]

    operations = [
        migrations.CreateModel(
            name='Batch',
            fields=[
                ('id', models.UUIDField(default=django_jobs.ids.uuid7, editable=False, primary_key=True, serialize=False, verbose_name='id')),
                ('name', models.CharField(blank=True, default='', max_length=255, verbose_name='name')),
                ('metadata', models.JSONField(blank=True, default=dict, encoder=django_jobs.serializers.Encoder, verbose_name='metadata')),
                ('created_by', models.CharField(blank=True, max_length=64, null=True, verbose_name='created by')),
                ('created_at', models.DateTimeField(db_default=django_jobs.db.DatabaseNow(), editable=False, verbose_name='created at')),
                ('sealed_at', models.DateTimeField(blank=True, null=True, verbose_name='sealed at')),
                ('finished_at', models.DateTimeField(blank=True, null=True, verbose_name='finished at')),
                ('read_at', models.DateTimeField(blank=True, null=True, verbose_name='read at')),
                ('on_success_id', models.UUIDField(editable=False, null=True)),
                ('on_failure_id', models.UUIDField(editable=False, null=True)),
                ('on_finish_id', models.UUIDField(editable=False, null=True)),
            ],
            options={
                'verbose_name': 'batch',
                'verbose_name_plural': 'batches',
                'ordering': ['-id'],
            },
        ),
        migrations.CreateModel(
            name='BatchCount',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('name', models.CharField(max_length=20, verbose_name='name')),
                ('value', models.BigIntegerField(default=0, verbose_name='value')),
            ],
            options={
                'verbose_name': 'count of a batch',
                'verbose_name_plural': 'counts of batches',
            },
        ),
        migrations.CreateModel(
            name='Edge',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
            ],
            options={
                'verbose_name': 'edge of a graph',
                'verbose_name_plural': 'edges of graphs',
            },
        ),
        migrations.CreateModel(
            name='Ended',
            fields=[
                ('id', models.BigAutoField(primary_key=True, serialize=False)),
                ('job_id', models.UUIDField()),
            ],
            options={
                'verbose_name': 'ended job to be followed',
                'verbose_name_plural': 'ended jobs to be followed',
            },
        ),
        migrations.RemoveConstraint(
            model_name='job',
            name='django_jobs_job_unique',
        ),
        migrations.AddField(
            model_name='delta',
            name='batch_id',
            field=models.UUIDField(null=True, verbose_name='batch'),
        ),
        migrations.AddField(
            model_name='job',
            name='graph',
            field=models.UUIDField(blank=True, editable=False, null=True, verbose_name='graph'),
        ),
        migrations.AddField(
            model_name='job',
            name='on_parent_cancel',
            field=models.CharField(blank=True, db_default='', default='', max_length=6, verbose_name='when a parent is cancelled'),
        ),
        migrations.AddField(
            model_name='job',
            name='on_parent_failure',
            field=models.CharField(blank=True, db_default='', default='', max_length=6, verbose_name='when a parent fails'),
        ),
        migrations.AddField(
            model_name='job',
            name='related',
            field=models.JSONField(blank=True, null=True, verbose_name='related object'),
        ),
        migrations.AddField(
            model_name='job',
            name='unique_until',
            field=models.CharField(blank=True, db_default='', default='', max_length=8, verbose_name='unique until'),
        ),
        migrations.RunPython(change_live_unique_key, restore_live_unique_key, atomic=False),
        migrations.AddIndex(
            model_name='batch',
            index=models.Index(fields=['finished_at', 'id'], name='django_jobs_batch_finished'),
        ),
        migrations.AddField(
            model_name='job',
            name='batch',
            field=models.ForeignKey(blank=True, db_constraint=False, db_index=False, null=True, on_delete=django.db.models.deletion.DO_NOTHING, related_name='jobs', to='django_jobs.batch', verbose_name='batch'),
        ),
        migrations.AddIndex(
            model_name='job',
            index=django_jobs.models.fields.PartialIndex(condition=models.Q(('graph__isnull', False)), fields=['graph', 'id'], name='django_jobs_in_graph'),
        ),
        migrations.AddIndex(
            model_name='job',
            index=django_jobs.models.fields.PartialIndex(condition=models.Q(('batch__isnull', False)), fields=['batch', 'id'], name='django_jobs_in_batch'),
        ),
        migrations.AddConstraint(
            model_name='job',
            constraint=django_jobs.models.fields.PartialUnique(condition=models.Q(('status__in', ['ready', 'scheduled', 'waiting']), models.Q(('status', 'running'), ('unique_until__in', ['', 'pruned'])), models.Q(('status', 'succeeded'), ('unique_until', 'pruned')), _connector='OR'), fields=('unique_key',), name='django_jobs_job_unique'),
        ),
        migrations.AddField(
            model_name='batchcount',
            name='batch',
            field=models.ForeignKey(db_constraint=False, db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='counts', to='django_jobs.batch'),
        ),
        migrations.AddField(
            model_name='edge',
            name='child',
            field=models.ForeignKey(db_constraint=False, db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='parent_edges', to='django_jobs.job'),
        ),
        migrations.AddField(
            model_name='edge',
            name='parent',
            field=models.ForeignKey(db_constraint=False, db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='child_edges', to='django_jobs.job'),
        ),
        migrations.AddConstraint(
            model_name='batchcount',
            constraint=models.UniqueConstraint(fields=('batch', 'name'), name='django_jobs_batchcount_name'),
        ),
        migrations.AddIndex(
            model_name='edge',
            index=models.Index(fields=['parent', 'child'], name='django_jobs_edge_parent'),
        ),
        migrations.AddConstraint(
            model_name='edge',
            constraint=models.UniqueConstraint(fields=('child', 'parent'), name='django_jobs_edge_child'),
        ),
    ]
