
import django.db.models.deletion
import django_jobs.db
import django_jobs.models.fields
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('django_jobs', '0001_initial'),
    ]

    operations = [
        migrations.CreateModel(
            name='ApiToken',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('name', models.CharField(max_length=100, verbose_name='name')),
                ('user_id', models.CharField(blank=True, default='', max_length=64, verbose_name='user')),
                ('prefix', models.CharField(editable=False, max_length=16, verbose_name='begins with')),
                ('digest', models.CharField(editable=False, max_length=64, unique=True)),
                ('verbs', models.JSONField(blank=True, default=list, verbose_name='verbs')),
                ('queues', models.JSONField(blank=True, default=list, verbose_name='queues')),
                ('created_at', models.DateTimeField(db_default=django_jobs.db.DatabaseNow(), editable=False, verbose_name='created at')),
                ('created_by', models.CharField(blank=True, default='', editable=False, max_length=64, verbose_name='created by')),
                ('expires_at', models.DateTimeField(blank=True, null=True, verbose_name='expires at')),
                ('revoked_at', models.DateTimeField(blank=True, editable=False, null=True, verbose_name='revoked at')),
                ('last_used_at', models.DateTimeField(blank=True, editable=False, null=True, verbose_name='last used at')),
            ],
            options={
                'verbose_name': 'API token',
                'verbose_name_plural': 'API tokens',
                'ordering': ['-id'],
            },
        ),
        migrations.CreateModel(
            name='Count',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('queue', models.CharField(max_length=100, verbose_name='queue')),
                ('name', models.CharField(max_length=20, verbose_name='name')),
                ('value', models.BigIntegerField(default=0, verbose_name='value')),
            ],
            options={
                'verbose_name': 'count',
                'verbose_name_plural': 'counts',
            },
        ),
        migrations.CreateModel(
            name='Delta',
            fields=[
                ('id', models.BigAutoField(primary_key=True, serialize=False)),
                ('queue', models.CharField(max_length=100, verbose_name='queue')),
                ('name', models.CharField(max_length=20, verbose_name='name')),
                ('value', models.BigIntegerField(verbose_name='value')),
            ],
            options={
                'verbose_name': 'change of a count',
                'verbose_name_plural': 'changes of counts',
            },
        ),
        migrations.CreateModel(
            name='IdempotencyKey',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('scope', models.CharField(max_length=64)),
                ('key', models.CharField(max_length=255)),
                ('digest', models.CharField(max_length=64)),
                ('answer', models.JSONField(null=True)),
                ('created_at', models.DateTimeField(db_default=django_jobs.db.DatabaseNow())),
            ],
            options={
                'verbose_name': 'idempotency key',
                'verbose_name_plural': 'idempotency keys',
            },
        ),
        migrations.CreateModel(
            name='JobTag',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('tag', models.CharField(max_length=100, verbose_name='tag')),
            ],
            options={
                'verbose_name': 'tag',
                'verbose_name_plural': 'tags',
            },
        ),
        migrations.AlterModelOptions(
            name='job',
            options={'permissions': [('enqueue_job', 'Can enqueue a job'), ('requeue_job', 'Can requeue a job'), ('cancel_job', 'Can cancel a job'), ('done_job', 'Can mark a job done by hand'), ('run_job', 'Can run a scheduled job now'), ('claim_job', 'Can claim jobs over HTTP'), ('view_payload', 'Can see arguments and results')], 'verbose_name': 'job', 'verbose_name_plural': 'jobs'},
        ),
        migrations.RemoveIndex(
            model_name='job',
            name='django_jobs_claim',
        ),
        migrations.RemoveIndex(
            model_name='job',
            name='django_jobs_claim_queue',
        ),
        migrations.AddField(
            model_name='job',
            name='is_http',
            field=models.BooleanField(default=False, verbose_name='for HTTP workers'),
        ),
        migrations.AddField(
            model_name='queue',
            name='is_http',
            field=models.BooleanField(blank=True, null=True, verbose_name='for HTTP workers'),
        ),
        migrations.AddIndex(
            model_name='job',
            index=django_jobs.models.fields.PartialIndex(condition=models.Q(('parked', ''), ('priority__gte', -100), ('status', 'ready')), fields=['is_http', '-priority', 'due_at', 'id'], lead=('status', 'parked'), name='django_jobs_claim'),
        ),
        migrations.AddIndex(
            model_name='job',
            index=django_jobs.models.fields.PartialIndex(condition=models.Q(('parked', ''), ('status', 'ready')), fields=['is_http', 'queue', '-priority', 'due_at', 'id'], lead=('status', 'parked'), name='django_jobs_claim_queue'),
        ),
        migrations.AddIndex(
            model_name='job',
            index=django_jobs.models.fields.PartialIndex(condition=models.Q(('status__in', ['failed', 'timed_out'])), fields=['queue', 'status', '-finished_at', '-id'], name='django_jobs_trouble'),
        ),
        migrations.AddConstraint(
            model_name='count',
            constraint=models.UniqueConstraint(fields=('queue', 'name'), name='django_jobs_count_name'),
        ),
        migrations.AddIndex(
            model_name='idempotencykey',
            index=models.Index(fields=['created_at'], name='django_jobs_idempotency_age'),
        ),
        migrations.AddConstraint(
            model_name='idempotencykey',
            constraint=models.UniqueConstraint(fields=('scope', 'key'), name='django_jobs_idempotency_key'),
        ),
        migrations.AddField(
            model_name='jobtag',
            name='job',
            field=models.ForeignKey(db_constraint=False, on_delete=django.db.models.deletion.CASCADE, related_name='+', to='django_jobs.job'),
        ),
        migrations.AddConstraint(
            model_name='jobtag',
            constraint=models.UniqueConstraint(fields=('tag', 'job'), name='django_jobs_tag_job'),
        ),
    ]
