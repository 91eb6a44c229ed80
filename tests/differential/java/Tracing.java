package tests.differential.test_wrapper;

import org.apache.kafka.common.header.internals.RecordHeaders;
import org.apache.kafka.streams.processor.api.FixedKeyProcessor;
import org.apache.kafka.streams.processor.api.FixedKeyProcessorContext;
import org.apache.kafka.streams.processor.api.FixedKeyProcessorSupplier;
import org.apache.kafka.streams.processor.api.FixedKeyRecord;
import org.apache.kafka.streams.processor.api.Processor;
import org.apache.kafka.streams.processor.api.ProcessorContext;
import org.apache.kafka.streams.processor.api.ProcessorSupplier;
import org.apache.kafka.streams.processor.api.ProcessorWrapper;
import org.apache.kafka.streams.processor.api.Record;
import org.apache.kafka.streams.processor.api.WrappedFixedKeyProcessorSupplier;
import org.apache.kafka.streams.processor.api.WrappedProcessorSupplier;
import java.util.Set;
import org.apache.kafka.common.header.Headers;
import org.apache.kafka.streams.state.StoreBuilder;

/** As in test_wrapper.py: each record gets a header with the name of each processor on its way. */
public final class Tracing implements ProcessorWrapper {
    private static Headers traced(final Headers headers, final String name) {
        return new RecordHeaders(headers).add("via", name.getBytes());
    }

    @Override
    public <KIn, VIn, KOut, VOut> WrappedProcessorSupplier<KIn, VIn, KOut, VOut> wrapProcessorSupplier(
        final String name, final ProcessorSupplier<KIn, VIn, KOut, VOut> supplier) {
        return ProcessorWrapper.asWrapped(new ProcessorSupplier<>() {
            @Override
            public Processor<KIn, VIn, KOut, VOut> get() {
                final Processor<KIn, VIn, KOut, VOut> inner = supplier.get();
                return new Processor<>() {
                    @Override
                    public void init(final ProcessorContext<KOut, VOut> context) {
                        inner.init(context);
                    }

                    @Override
                    public void process(final Record<KIn, VIn> record) {
                        inner.process(record.withHeaders(traced(record.headers(), name)));
                    }

                    @Override
                    public void close() {
                        inner.close();
                    }
                };
            }

            @Override
            public Set<StoreBuilder<?>> stores() {
                return supplier.stores();
            }
        });
    }

    @Override
    public <KIn, VIn, VOut> WrappedFixedKeyProcessorSupplier<KIn, VIn, VOut> wrapFixedKeyProcessorSupplier(
        final String name, final FixedKeyProcessorSupplier<KIn, VIn, VOut> supplier) {
        return ProcessorWrapper.asWrappedFixedKey(new FixedKeyProcessorSupplier<>() {
            @Override
            public FixedKeyProcessor<KIn, VIn, VOut> get() {
                final FixedKeyProcessor<KIn, VIn, VOut> inner = supplier.get();
                return new FixedKeyProcessor<>() {
                    @Override
                    public void init(final FixedKeyProcessorContext<KIn, VOut> context) {
                        inner.init(context);
                    }

                    @Override
                    public void process(final FixedKeyRecord<KIn, VIn> record) {
                        inner.process(record.withHeaders(traced(record.headers(), name)));
                    }

                    @Override
                    public void close() {
                        inner.close();
                    }
                };
            }

            @Override
            public Set<StoreBuilder<?>> stores() {
                return supplier.stores();
            }
        });
    }
}
