# prelude: gcl


class FooLayer:
    def forward(self, input_ids, attention_mask=None):
        return input_ids


class FooModel:
    def forward(self, input_ids, attention_mask=None):
        for layer in self.layers:
            input_ids = layer(input_ids=input_ids, attention_mask=attention_mask)
        return input_ids
